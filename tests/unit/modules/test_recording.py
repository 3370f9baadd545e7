"""A recording becomes a voice, or is refused with the reason."""

from __future__ import annotations

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


@pytest.mark.parametrize("rate", [16000, 22050, 24000, 48000])
def test_any_rate_from_16_khz_gives_two_frames_for_each_token(rate: int) -> None:
    voice = model(2).recordings.voice("me", hum(1.3, rate), rate, "hm")
    assert voice.prompt_mel.shape == (2 * len(voice.prompt_tokens), 80)
    assert len(voice.prompt_tokens) == pytest.approx(1.3 * 25, abs=1)
    assert (voice.name, voice.prompt_text, voice.embedding.shape) == ("me", "hm", (192,))


@pytest.mark.parametrize(
    ("audio", "rate", "complaint"),
    [
        (hum(1, 8000), 8000, "8000 Hz; record it at 16000 Hz or more"),
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


def test_resampling_keeps_a_tone_and_drops_what_is_above_the_new_band() -> None:
    time = torch.arange(48000) / 48000
    low, high = (2 * torch.pi * 1000 * time).sin(), (2 * torch.pi * 11000 * time).sin()
    kept = resample(low, 48000, 16000)[100:-100]
    expected = (2 * torch.pi * 1000 * torch.arange(16000) / 16000).sin()[100:-100]
    assert float((kept - expected).abs().max()) < 1e-2
    assert float(resample(high, 48000, 16000)[100:-100].abs().max()) < 1e-2
