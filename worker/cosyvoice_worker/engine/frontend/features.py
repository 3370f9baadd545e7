"""Signal features of a voice prompt, equal to those that the models were trained with: resampling, three spectrograms.

Everything takes and gives float32 tensors on the CPU. Written out here because the libraries that have them
(torchaudio, librosa, openai-whisper) are large or in maintenance, and the constants are part of the models.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from cosyvoice_worker.models.directory import MelConfig

_MOST_TAPS = 1_000_000
"""Of a resampling filter, whose size is the product of the reduced rates: 44,056 Hz to 16 kHz would take 11 million,
47,999 Hz 768 million. The largest of a usual rate: 192 kHz to 22,050 Hz, 188,160."""


def can_resample(source: int, target: int) -> bool:
    """Whether the ratio of the rates (Hz) is simple enough for `resample`."""
    old, new = _ratio(source, target)
    return old * new <= _MOST_TAPS


def resample(audio: Tensor, source: int, target: int) -> Tensor:
    """(N,) at `source` Hz -> (ceil(N target / source),) at `target` Hz: windowed sinc, torchaudio's default filter
    (Hann, six zero crossings, roll-off 0.99). Raises ValueError unless `can_resample`."""
    if source == target:
        return audio
    if not can_resample(source, target):
        raise ValueError(f"{source} Hz to {target} Hz is too odd a ratio to resample")
    old, new = _ratio(source, target)
    kernel, width = _sinc(old, new)
    padded = F.pad(audio, (width, width + old))
    phases = F.conv1d(padded[None, None], kernel, stride=old)
    return phases[0].T.reshape(-1)[: math.ceil(new * audio.shape[0] / old)]


def _ratio(source: int, target: int) -> tuple[int, int]:
    divisor = math.gcd(source, target)
    return source // divisor, target // divisor


@lru_cache(maxsize=16)
def _sinc(old: int, new: int) -> tuple[Tensor, int]:
    crossings, rolloff = 6, 0.99
    base = min(old, new) * rolloff
    width = math.ceil(crossings * old / base)
    step = torch.arange(-width, width + old, dtype=torch.float64) / old
    time = (torch.arange(0, -new, -1, dtype=torch.float64)[:, None, None] / new + step) * base
    time = time.clamp(-crossings, crossings)
    window = (time * math.pi / crossings / 2).cos().square()
    return (torch.sinc(time) * window * (base / old)).float(), width


@lru_cache(maxsize=8)
def slaney_filters(rate: int, n_fft: int, bins: int, low: float, high: float) -> Tensor:
    """Triangular mel filters on Slaney's scale, each of unit area: (bins, n_fft / 2 + 1)."""

    def to_mel(hertz: Tensor) -> Tensor:
        return torch.where(
            hertz < 1000, hertz * 3 / 200, 15 + (hertz.clamp(min=1e-9) / 1000).log() * 27 / math.log(6.4)
        )

    def to_hertz(mel: Tensor) -> Tensor:
        return torch.where(mel < 15, mel * 200 / 3, 1000 * ((mel - 15) * math.log(6.4) / 27).exp())

    ends = to_mel(torch.tensor([low, high], dtype=torch.float64))
    points = to_hertz(torch.linspace(float(ends[0]), float(ends[1]), bins + 2, dtype=torch.float64))
    frequency = torch.arange(n_fft // 2 + 1, dtype=torch.float64) * rate / n_fft
    rising = (frequency - points[:-2, None]) / (points[1:-1] - points[:-2])[:, None]
    falling = (points[2:, None] - frequency) / (points[2:] - points[1:-1])[:, None]
    area = 2 / (points[2:] - points[:-2])
    return (torch.minimum(rising, falling).clamp(min=0) * area[:, None]).float()


def whisper_mel(audio: Tensor) -> Tensor:
    """Whisper's log-mel spectrogram with 128 bins: (N,) at 16 kHz -> (128, N / 160)."""
    power = torch.stft(audio, 400, 160, window=torch.hann_window(400), return_complex=True)[:, :-1].abs().square()
    mel = slaney_filters(16000, 400, 128, 0.0, 8000.0) @ power
    log = mel.clamp(min=1e-10).log10()
    return (log.maximum(log.max() - 8) + 4) / 4


def flow_mel(audio: Tensor, config: MelConfig) -> Tensor:
    """The flow's log-mel spectrogram: (N,) at config.sample_rate -> (frames, config.bins)."""
    side = (config.n_fft - config.hop) // 2
    padded = F.pad(audio[None], (side, side), mode="reflect")[0]
    window = torch.hann_window(config.window)
    spectrum = torch.stft(
        padded, config.n_fft, config.hop, config.window, window=window, center=False, return_complex=True
    )
    magnitude = (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()
    high = config.sample_rate / 2 if config.fmax is None else config.fmax
    filters = slaney_filters(config.sample_rate, config.n_fft, config.bins, config.fmin, high)
    log: Tensor = (filters @ magnitude).clamp(min=1e-5).log()
    return log.T


def kaldi_fbank(audio: Tensor) -> Tensor:
    """Kaldi's log filter bank with 80 bins and no dither: (N,) at 16 kHz -> (1 + (N - 400) / 160, 80)."""
    frames = audio.unfold(0, 400, 160)
    frames = frames - frames.mean(dim=1, keepdim=True)
    frames = frames - 0.97 * torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
    window = torch.hann_window(400, periodic=False).pow(0.85)
    power = torch.fft.rfft(frames * window, n=512).abs().square()
    energy: Tensor = power @ _kaldi_filters()
    return energy.clamp(min=torch.finfo(torch.float32).eps).log()


@lru_cache(maxsize=1)
def _kaldi_filters() -> Tensor:
    """(257, 80): triangles between 20 Hz and 8 kHz, even on HTK's mel scale, drawn on that scale."""

    def to_mel(hertz: Tensor) -> Tensor:
        return 1127 * (1 + hertz / 700).log()

    ends = to_mel(torch.tensor([20.0, 8000.0]))
    step = (ends[1] - ends[0]) / 81
    left = ends[0] + torch.arange(80)[:, None] * step
    mel = to_mel(torch.arange(256) * (16000 / 512))
    filters = torch.minimum((mel - left) / step, (left + 2 * step - mel) / step).clamp(min=0)
    return F.pad(filters, (0, 1)).T
