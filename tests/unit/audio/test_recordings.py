"""Recordings that people send are decoded, or refused with the reason before any work is done on them."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from cosyvoice_worker.audio.recordings import RecordingError, decode_recording

PROMPTS = Path(__file__).parents[3] / "models" / "prompts"


def recorded(
    seconds: float = 3.0,
    rate: int = 24000,
    container: str = "WAV",
    subtype: str = "PCM_16",
    channels: int = 1,
    level: float = 0.3,
):
    tone = level * np.sin(2 * np.pi * 200 * np.arange(int(seconds * rate)) / rate)
    file = io.BytesIO()
    soundfile.write(file, np.stack([tone] * channels, axis=1), rate, format=container, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(
    ("container", "subtype", "rate"),
    [
        *(("WAV", width, 44100) for width in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")),
        ("FLAC", "PCM_16", 48000),
        ("OGG", "OPUS", 48000),
        ("OGG", "VORBIS", 22050),
        ("MP3", "MPEG_LAYER_III", 44100),
    ],
)
def test_the_formats_that_people_have(container, subtype, rate):
    recording = decode_recording(recorded(container=container, subtype=subtype, rate=rate, channels=2))
    assert recording.sample_rate == rate
    assert recording.pcm.dtype == np.float32
    assert len(recording.pcm) / rate == pytest.approx(3.0, abs=0.1)
    assert np.sqrt((recording.pcm**2).mean()) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: b"", "cannot be decoded"),
        (lambda: b"not audio at all", "cannot be decoded"),
        (lambda: recorded()[:30], "cannot be decoded"),
        (lambda: recorded(rate=8000), "8000 Hz; send one of at least 16000 Hz"),
        (lambda: recorded(seconds=0.4), "lasts 0.40 s"),
        (lambda: recorded(seconds=31), "longer than 30 s"),
        (lambda: recorded(level=0.0005), "silent"),
    ],
)
def test_what_cannot_be_a_voice_is_refused_with_the_reason(data, reason):
    with pytest.raises(RecordingError, match=reason):
        decode_recording(data())


def test_the_default_prompt_is_a_usable_recording_with_its_words():
    recording = decode_recording((PROMPTS / "default.wav").read_bytes())
    assert recording.sample_rate == 24000
    assert 3.0 < len(recording.pcm) / recording.sample_rate < 6.0
    assert (PROMPTS / "default.txt").read_text().strip().endswith(".")
