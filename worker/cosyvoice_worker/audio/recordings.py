"""Bytes of a recording, as clients and images bring them -> PCM. Whether it can be a voice is the engine's to say."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import soundfile

from cosyvoice_worker.audio.encoders import Pcm

MAX_RATE = 192_000
"""Hz; no recorder has more. FLAC's header can say 655,350."""
MAX_CHANNELS = 8
"""7.1 surround; FLAC's own limit."""
_BLOCK = 1 << 16
"""Frames decoded at once: their channels are averaged before the next ones are decoded."""


class UndecodableAudio(ValueError):
    """The bytes are no audio that can be read here; the text says why and what to send."""


@dataclass(frozen=True, slots=True)
class Recording:
    pcm: Pcm
    """(n,) float32, mono, -1..1."""
    sample_rate: int


def decode_recording(data: bytes, max_seconds: float) -> Recording:
    """wav, flac, ogg (opus, vorbis), mp3 of any width and number of channels; channels are averaged.

    At most a second more than `max_seconds` is decoded, whatever the bytes unfold to: no more than 24 MB for 30 s.
    Raises UndecodableAudio.
    """
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = int(file.samplerate)
            if rate > MAX_RATE:
                raise UndecodableAudio(f"the recording's sample rate is {rate} Hz; convert it to 24000 or 48000 Hz")
            if file.channels > MAX_CHANNELS:
                raise UndecodableAudio(f"the recording has {file.channels} channels; mix it down to one")
            pcm = _averaged(file, int((max_seconds + 1) * rate))
    except (soundfile.LibsndfileError, MemoryError) as error:
        raise UndecodableAudio(f"the recording cannot be decoded ({error}); send wav, flac, ogg or mp3") from None
    return Recording(pcm, rate)


def _averaged(file: soundfile.SoundFile, most: int) -> Pcm:
    """At most `most` frames of the file, mono."""
    blocks: list[Pcm] = []
    while most > 0 and len(block := file.read(min(_BLOCK, most), dtype="float32", always_2d=True)):
        blocks.append(block.mean(axis=1))
        most -= len(block)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
