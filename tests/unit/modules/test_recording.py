"""A recording becomes a voice, or is refused with the reason."""

from __future__ import annotations

import math

import pytest
import torch

from cosyvoice_worker.engine.frontend.features import resample
from cosyvoice_worker.engine.frontend.recording import RecordingError
from tests.unit.engine.tiny import model


def hum(seconds: float, rate: int) -> torch.Tensor:
    time = torch.arange(int(seconds * rate)) / rate
    return 0.3 * (2 * torch.pi * 150 * time).sin() + 0.05 * torch.randn(
        len(time), generator=torch.Generator().manual_seed(0)
    )


def tone(hertz: float, rate: int) -> torch.Tensor:
    """A second of it."""
    return (2 * torch.pi * hertz * torch.arange(rate, dtype=torch.float64) / rate).sin().float()


@pytest.mark.parametrize("rate", [16000, 22050, 24000, 37800, 44100, 48000, 96000, 192000])
def test_any_usual_rate_from_16_khz_gives_two_frames_for_each_token(rate: int) -> None:
    voice = model(2).recordings.voice("me", hum(1.3, rate), rate, "hm")
    assert voice.prompt_mel.shape == (2 * len(voice.prompt_tokens), 80)
    assert len(voice.prompt_tokens) == pytest.approx(1.3 * 25, abs=1)
    assert (voice.name, voice.prompt_text, voice.embedding.shape) == ("me", "hm", (192,))


@pytest.mark.parametrize(
    ("audio", "rate", "complaint"),
    [
        (hum(1, 8000), 8000, "8000 Hz; record it at 16000 Hz or more"),
        (hum(1, 47999), 47999, "47999 Hz; convert it to 24000 or 48000 Hz"),
        (hum(1, 44056), 44056, "44056 Hz; convert it to 24000 or 48000 Hz"),
        (hum(0.4, 16000), 16000, r"0\.40 s; it must be 0\.5 s or more"),
        (hum(30.1, 16000), 16000, r"30\.1 s; cut it to 30 s"),
        (torch.zeros(16000), 16000, "silent"),
        (hum(1, 16000) * float("nan"), 16000, "not finite"),
        (hum(1, 16000)[None], 16000, "one channel"),
    ],
)
def test_a_recording_that_cannot_be_used_is_refused(audio: torch.Tensor, rate: int, complaint: str) -> None:
    with pytest.raises(RecordingError, match=complaint):
        model(2).recordings.voice("me", audio, rate)


@pytest.mark.parametrize("source", [22050, 37800, 44100, 48000, 88200, 192000])
@pytest.mark.parametrize("target", [16000, 22050, 24000])
def test_resampling_keeps_a_tone_and_drops_what_is_above_the_new_band(source: int, target: int) -> None:
    low, high = tone(1000, source), tone(target * 0.6875, source)
    kept = resample(low, source, target)
    assert len(kept) == math.ceil(len(low) * target / source)
    assert float((kept - tone(1000, target)[: len(kept)])[200:-200].abs().max()) < 1e-2
    if target * 0.6875 < source / 2:
        assert float(resample(high, source, target)[200:-200].abs().max()) < 1e-2


def test_rates_whose_filter_would_fill_the_memory_are_not_resampled() -> None:
    with pytest.raises(ValueError, match="47999 Hz to 16000 Hz is too odd"):
        resample(hum(0.1, 47999), 47999, 16000)
