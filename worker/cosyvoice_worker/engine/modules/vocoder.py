"""HiFT: mel frames to waveform, a batch of streams at a time, in one piece or as the mel comes.

A harmonic source is made from the predicted pitch, filtered by a HiFi-GAN-like network that predicts magnitude and
phase, and brought back by an inverse short-time Fourier transform. Every output sample depends on a bounded stretch of
mel and source around it. So a stream keeps that stretch to its left, waits for that stretch on its right, and carries
the phase of its oscillators: what is joined equals what one decode of the whole would give, without a crossfade.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_worker.models.directory import VocoderConfig

Noise = Callable[[int, int], Tensor]
"""(first sample, count) -> (count, harmonics + 1) float32: the stream's own noise by position, so that it is the same
in one piece and in many. v2 was trained with standard normal noise, v3 runs with uniform noise in [0, 1)."""


@dataclass(slots=True, eq=False)
class VocoderState:
    """What one stream carries from chunk to chunk; all tensors on the vocoder's device."""

    noise: Noise
    mel: Tensor
    """(mel, W): frames that are still needed: left context, then those not spoken yet."""
    source: Tensor
    """(480 K,): source signal of the first K frames of `mel`, final."""
    phase: Tensor
    """(harmonics + 1,) float64: cycles turned before frame K, at the frame rate."""
    first: int = 0
    """Stream position of the first frame of `mel`."""
    spoken: int = 0
    """Frames of the stream whose audio has been given out."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stream's next mel frames."""

    state: VocoderState
    mel: Tensor
    """(mel, n) float32, n >= 0."""
    final: bool
    """No more frames follow: everything is spoken to the end."""


class Snake(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha[:, None]
        return x + (x * alpha).sin().square() / (alpha + 1e-9)


class Conv(nn.Conv1d):
    """Convolution of (B, C, T) that keeps T. v2 looks both ways, v3 (`causal`) to the left or `ahead` to the right."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, causal: bool = False, ahead: int = 0
    ) -> None:
        super().__init__(inputs, outputs, kernel, dilation=dilation)
        reach = (kernel - 1) * dilation
        self.sides = (reach - ahead, ahead) if causal else (reach // 2, reach // 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.sides
        if left == right:
            return F.conv1d(x, self.weight, self.bias, padding=left, dilation=self.dilation)
        return F.conv1d(F.pad(x, self.sides), self.weight, self.bias, dilation=self.dilation)


class SourceDown(nn.Conv1d):
    """Brings the source's spectrum to the rate of a stage."""

    def __init__(self, inputs: int, outputs: int, rate: int, causal: bool) -> None:
        super().__init__(inputs, outputs, 1 if rate == 1 else 2 * rate, stride=rate)
        self.sides = (0, 0) if rate == 1 else (rate - 1, 0) if causal else (rate // 2, rate // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(F.pad(x, self.sides), self.weight, self.bias, stride=self.stride)


class CausalUp(nn.Conv1d):
    """v3: repeats every step and smooths to the left."""

    def __init__(self, inputs: int, outputs: int, kernel: int, rate: int) -> None:
        super().__init__(inputs, outputs, kernel)
        self.rate = rate
        self.left = kernel - 1

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(F.pad(x.repeat_interleave(self.rate, dim=2), (self.left, 0)), self.weight, self.bias)


class ResBlock(nn.Module):
    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...], causal: bool) -> None:
        super().__init__()
        count = len(dilations)
        self.convs1 = nn.ModuleList(Conv(channels, channels, kernel, dilation=d, causal=causal) for d in dilations)
        self.convs2 = nn.ModuleList(Conv(channels, channels, kernel, causal=causal) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in range(count))
        self.activations2 = nn.ModuleList(Snake(channels) for _ in range(count))

    def forward(self, x: Tensor, keep: Keep) -> Tensor:
        for snake1, conv1, snake2, conv2 in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            x = x + keep(conv2(snake2(keep(conv1(snake1(x))))))
        return x


Keep = Callable[[Tensor], Tensor]
"""Sets what lies beyond each row's end to zero, which is what a shorter batch would have there."""


class F0Predictor(nn.Module):
    """Pitch in Hz of every frame. Sees `left` frames before and `right` frames after it."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        size, causal = config.f0_channels, config.version == 3
        first = Conv(config.mel, size, 4, causal=True, ahead=3) if causal else Conv(config.mel, size, 3)
        rest = [Conv(size, size, 3, causal=causal) for _ in range(4)]
        layers = [layer for conv in (first, *rest) for layer in (conv, nn.ELU())]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(size, 1)
        self.right = sum(conv.sides[1] for conv in (first, *rest))

    def forward(self, mel: Tensor, keep: Keep) -> Tensor:
        """(B, mel, T) -> (B, T) >= 0."""
        x = mel.to(self.classifier.weight.dtype)
        for layer in self.condnet:
            x = layer(x)
            if isinstance(layer, nn.Conv1d):
                x = keep(x)
        pitch: Tensor = self.classifier(x.transpose(1, 2))
        return pitch.squeeze(-1).abs().to(mel.dtype)


class Source(nn.Module):
    """The harmonic source: sines of the pitch and its overtones where voiced, noise everywhere."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.l_linear = nn.Linear(config.harmonics + 1, 1)


class Vocoder(nn.Module):
    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.frame = math.prod(config.up_rates) * config.hop
        """Samples per mel frame (480)."""
        raise NotImplementedError

    def begin(self, noise: Noise) -> VocoderState:
        """The state of a stream before its first frame."""
        raise NotImplementedError

    def forward(self, mels: Sequence[Tensor], noises: Sequence[Noise]) -> list[Tensor]:
        """Whole sentences at once: (mel, T) float32 each -> (480 T,) float32 each, within -0.99..0.99."""
        return self.advance(
            [Chunk(self.begin(noise), mel, final=True) for mel, noise in zip(mels, noises, strict=True)]
        )

    def advance(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """The next audio of each stream: (480 n,) float32, n >= 0. Changes the chunks' states.

        What is given out is final; a stream that goes on holds back `self.right` frames.
        """
        raise NotImplementedError
