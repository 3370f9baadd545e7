"""Bytes of a recording, as clients and images bring them -> PCM. Whether it can be a voice is the engine's to say."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import soundfile

from cosyvoice_worker.audio.encoders import Pcm


class UndecodableAudio(ValueError):
    """The bytes are no audio that can be read here; the text says why and what to send."""


@dataclass(frozen=True, slots=True)
class Recording:
    pcm: Pcm
    """(n,) float32, mono, -1..1."""
    sample_rate: int


def decode_recording(data: bytes, max_seconds: float) -> Recording:
    """wav, flac, ogg (opus, vorbis), mp3 of any width and number of channels; channels are averaged.

    At most a second more than `max_seconds` is decoded, whatever the bytes unfold to. Raises UndecodableAudio.
    """
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = int(file.samplerate)
            samples = file.read(int((max_seconds + 1) * rate), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, MemoryError) as error:
        raise UndecodableAudio(f"the recording cannot be decoded ({error}); send wav, flac, ogg or mp3") from None
    return Recording(np.ascontiguousarray(samples.mean(axis=1)), rate)
