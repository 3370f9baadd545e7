"""Recordings that clients and images bring -> PCM that a voice can be made of; what cannot be used is refused first."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final

import numpy as np
import soundfile

from cosyvoice_worker.audio.encoders import Pcm

MIN_SECONDS: Final = 1.0
"""Below, there is too little of a voice to copy."""
MAX_SECONDS: Final = 30.0
"""The speech tokenizer's limit (official frontend)."""
MIN_SAMPLE_RATE: Final = 16_000
"""The official frontend's limit: the speech tokenizer hears 16 kHz, upsampling adds nothing to hear."""
SILENCE: Final = 10 ** (-50 / 20)
"""Root mean square over 50 ms below which nothing is said (-50 dBFS)."""


class RecordingError(ValueError):
    """The recording cannot be a voice; the text says why and what to send."""


@dataclass(frozen=True, slots=True)
class Recording:
    pcm: Pcm
    """(n,) float32, mono, -1..1."""
    sample_rate: int


def decode_recording(data: bytes) -> Recording:
    """wav, flac, ogg (opus, vorbis), mp3 of any width and number of channels. Raises RecordingError."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = int(file.samplerate)
            if rate < MIN_SAMPLE_RATE:
                raise RecordingError(f"the recording has {rate} Hz; send one of at least {MIN_SAMPLE_RATE} Hz")
            samples = file.read(int((MAX_SECONDS + 1) * rate), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise RecordingError(f"the recording cannot be decoded ({error}); send wav, flac, ogg or mp3") from None
    pcm = np.ascontiguousarray(samples.mean(axis=1))
    seconds = len(pcm) / rate
    if seconds > MAX_SECONDS:
        raise RecordingError(f"the recording is longer than {MAX_SECONDS:.0f} s; send 3 to 10 s of clear speech")
    if seconds < MIN_SECONDS:
        raise RecordingError(f"the recording lasts {seconds:.2f} s; send at least {MIN_SECONDS:.0f} s of clear speech")
    if not np.isfinite(pcm).all():
        raise RecordingError("the recording holds values that are no numbers; save it again as 16-bit wav")
    frame = rate // 20
    frames = pcm[: len(pcm) // frame * frame].reshape(-1, frame)
    if np.sqrt((frames**2).mean(axis=1)).max() < SILENCE:
        raise RecordingError("the recording is silent; check the microphone and send 3 to 10 s of clear speech")
    return Recording(pcm, rate)
