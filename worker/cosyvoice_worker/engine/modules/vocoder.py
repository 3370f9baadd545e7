"""HiFT: mel frames to waveform, a batch of streams at a time, in one piece or as the mel comes.

A harmonic source is made from the predicted pitch, filtered by a HiFi-GAN-like network that predicts magnitude and
phase, and brought back by an inverse short-time Fourier transform. Every output sample depends on a bounded stretch of
mel and source around it. So a stream keeps that stretch to its left, waits for that stretch on its right, and carries
the phase of its oscillators: what is joined equals what one decode of the whole would give, without a crossfade.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_worker.engine.modules.layers import to_device
from cosyvoice_worker.models.directory import VocoderConfig

Noise = Callable[[int, int], Tensor]
"""(first sample, count) -> (count, harmonics + 1) float32: the stream's own noise by position, so that it is the same
in one piece and in many. v2 was trained with standard normal noise, v3 runs with uniform noise in [0, 1)."""


@dataclass(slots=True, eq=False)
class VocoderState:
    """What one stream carries from chunk to chunk; all tensors on the vocoder's device.

    `Vocoder.advance` replaces the fields and never writes into a tensor, so a shallow copy is a way back.
    """

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


Keep = Callable[[Tensor], Tensor]
"""Sets what lies beyond each row's end to zero, in place, which is what a shorter batch would have there."""


class Snake(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha[:, None]
        return torch.addcmul(x, (x * alpha).sin_().square_(), 1 / (alpha + 1e-9))


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
    """The harmonic source: sines of the pitch and its overtones where voiced, noise everywhere.

    The phase is summed in cycles and in float64, so that it does not coarsen as a stream grows long.
    """

    def __init__(self, config: VocoderConfig, frame: int) -> None:
        super().__init__()
        self.config, self.frame = config, frame
        self.l_linear = nn.Linear(config.harmonics + 1, 1)
        self.waits = 1 if config.version == 2 else 0
        """Frames to the right whose pitch a frame's source depends on: v2 interpolates the phase between frames."""

    def cycles(self, f0: Tensor) -> Tensor:
        """Cycles per sample, wrapped, of the fundamental and the overtones: (B, n) Hz -> (B, n, harmonics + 1)."""
        order = torch.arange(1, self.config.harmonics + 2, device=f0.device, dtype=f0.dtype)
        return (f0[..., None] * order / self.config.sample_rate) % 1

    def forward(self, f0: Tensor, before: Tensor, start: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Source of n frames and the phase at each.

        f0 (B, n) Hz, 0 beyond a row's end; before (B, harmonics + 1) float64: phase before the first frame; start (B,)
        bool: the first frame is the stream's first; noise (B, 480 n, harmonics + 1).
        -> source (B, 480 n), phase after each frame (B, n, harmonics + 1) float64.
        """
        config, frame = self.config, self.frame
        rate = self.cycles(f0)
        phase = before[:, None] + rate.double().cumsum(dim=1)
        if config.version == 2:
            # Each frame's value stands at its middle; the first and the last half of a stream hold still.
            offset = torch.arange(frame, device=f0.device, dtype=torch.float32)[:, None] + (0.5 - frame / 2)
            arriving = rate.clone()
            arriving[:, 0] *= ~start[:, None]
            leaving = F.pad(rate[:, 1:], (0, 0, 0, 1))
            turned = ((phase * frame) % 1).float()[:, :, None]
            turned = turned + offset * torch.where(offset < 0, arriving[:, :, None], leaving[:, :, None])
            sines = (2 * torch.pi * turned).sin() * config.sine_amplitude
        else:
            # Rounded where the official code rounds: the phase holds through a frame, so its rounding is heard.
            angle = phase.float() * 2 * torch.pi * frame
            sines = (angle.sin() * config.sine_amplitude)[:, :, None]
        voiced = (f0 > config.voiced_threshold).float()[:, :, None, None]
        level = voiced * config.noise_sigma + (1 - voiced) * (config.sine_amplitude / 3)
        mixed = sines * voiced + level * noise.view(*f0.shape, frame, -1)
        source = self.l_linear(mixed).tanh()
        return source.flatten(1), phase


class Vocoder(nn.Module):
    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.causal = causal = config.version == 3
        self.hops = math.prod(config.up_rates)
        self.frame = self.hops * config.hop
        """Samples per mel frame (480)."""
        stages = len(config.up_rates)
        sizes = [config.channels >> index for index in range(stages + 1)]
        bins = config.n_fft + 2

        self.m_source = Source(config, self.frame)
        self.f0_predictor = F0Predictor(config)
        self.conv_pre = (
            Conv(config.mel, sizes[0], config.lookahead + 1, causal=True, ahead=config.lookahead)
            if causal
            else Conv(config.mel, sizes[0], 7)
        )
        self.ups = nn.ModuleList(
            CausalUp(i, o, kernel, rate) if causal else nn.ConvTranspose1d(i, o, kernel, rate, (kernel - rate) // 2)
            for i, o, kernel, rate in zip(sizes, sizes[1:], config.up_kernels, config.up_rates, strict=False)
        )
        rates = [math.prod(config.up_rates[index + 1 :]) for index in range(stages)]
        self.source_downs = nn.ModuleList(
            SourceDown(bins, size, rate, causal) for size, rate in zip(sizes[1:], rates, strict=True)
        )
        self.source_resblocks = nn.ModuleList(
            ResBlock(size, kernel, dilations, causal)
            for size, kernel, dilations in zip(sizes[1:], config.source_kernels, config.source_dilations, strict=True)
        )
        self.resblocks = nn.ModuleList(
            ResBlock(size, kernel, dilations, causal)
            for size in sizes[1:]
            for kernel, dilations in zip(config.res_kernels, config.res_dilations, strict=True)
        )
        self.conv_post = Conv(sizes[-1], bins, 7, causal=causal)

        self.analysis: Tensor
        self.synthesis: Tensor
        self.window: Tensor
        for name, value in zip(("analysis", "synthesis", "window"), fourier_bases(config.n_fft), strict=True):
            self.register_buffer(name, value, persistent=False)

        self.left, self.right = RECEPTIVE_FIELD[config.version]
        """Mel frames before and after a frame that its samples depend on."""

    def begin(self, noise: Noise) -> VocoderState:
        """The state of a stream before its first frame."""
        device = self.window.device
        return VocoderState(
            noise=noise,
            mel=torch.zeros(self.config.mel, 0, device=device),
            source=torch.zeros(0, device=device),
            phase=torch.zeros(self.config.harmonics + 1, dtype=torch.float64, device=device),
        )

    def forward(self, mels: Sequence[Tensor], noises: Sequence[Noise]) -> list[Tensor]:
        """Whole sentences at once: (mel, T) float32 each -> (480 T,) float32 each, within -0.99..0.99."""
        return self.advance(
            [Chunk(self.begin(noise), mel, final=True) for mel, noise in zip(mels, noises, strict=True)]
        )

    def advance(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """The next audio of each stream: (480 n,) float32, n >= 0. Changes the chunks' states.

        What is given out is final; a stream that goes on holds back `self.right` frames.
        """
        audio = [chunk.state.source[:0] for chunk in chunks]
        ready: list[int] = []
        for index, chunk in enumerate(chunks):
            state = chunk.state
            state.mel = torch.cat([state.mel, chunk.mel.to(state.mel.device)], dim=1)
            if self._until(chunk) > state.spoken:
                ready.append(index)
        if not ready:
            return audio
        live = [chunks[index] for index in ready]
        lengths = [chunk.state.mel.shape[1] for chunk in live]
        mel = nn.utils.rnn.pad_sequence([chunk.state.mel.T for chunk in live], batch_first=True).transpose(1, 2)
        keep = _Keep(lengths, mel.device) if min(lengths) < max(lengths) else None
        source = self._extend_sources(live, mel, keep)
        wave = self.decode(mel, source, lengths)
        for index, chunk, row in zip(ready, live, wave, strict=True):
            state, until = chunk.state, self._until(chunk)
            audio[index] = row[(state.spoken - state.first) * self.frame : (until - state.first) * self.frame]
            state.spoken = until
            passed = max(until - self.left - state.first, 0)
            state.mel = state.mel[:, passed:].clone()
            state.source = state.source[passed * self.frame :].clone()
            state.first += passed
        return audio

    def _until(self, chunk: Chunk) -> int:
        """Stream position up to which the chunk's stream can be spoken, its mel already appended."""
        available = chunk.state.first + chunk.state.mel.shape[1]
        return available if chunk.final else max(available - self.right, chunk.state.spoken)

    def _extend_sources(self, live: Sequence[Chunk], mel: Tensor, keep: _Keep | None) -> Tensor:
        """(B, 480 T) source of every row's window; what of it is final is kept in the states."""
        config, frame, device = self.config, self.frame, mel.device
        f0 = self.f0_predictor(mel, _scaled(keep, 1))
        states = [chunk.state for chunk in live]
        known = [state.source.shape[0] // frame for state in states]
        fresh = [state.mel.shape[1] - k for state, k in zip(states, known, strict=True)]
        width = max(fresh)
        pitch = torch.zeros(len(live), width, device=device)
        noise = torch.zeros(len(live), width * frame, config.harmonics + 1, device=device)
        for row, (state, k, n) in enumerate(zip(states, known, fresh, strict=True)):
            pitch[row, :n] = f0[row, k : k + n]
            noise[row, : n * frame] = state.noise((state.first + k) * frame, n * frame).to(device)
        start = to_device([s.first + k == 0 for s, k in zip(states, known, strict=True)], device)
        before = torch.stack([state.phase for state in states])
        made, phase = self.m_source(pitch, before, start, noise)

        source = torch.zeros(len(live), mel.shape[2] * frame, device=device)
        for row, (chunk, k, n) in enumerate(zip(live, known, fresh, strict=True)):
            state = chunk.state
            source[row, : k * frame] = state.source
            source[row, k * frame : (k + n) * frame] = made[row, : n * frame]
            settled = n if chunk.final else max(n - self.f0_predictor.right - self.m_source.waits, 0)
            if settled:
                state.source = source[row, : (k + settled) * frame].clone()
                state.phase = phase[row, settled - 1].clone()
        return source

    def decode(self, mel: Tensor, source: Tensor, lengths: Sequence[int]) -> Tensor:
        """mel (B, mel, T), source (B, 480 T), frames of each row -> (B, 480 T); rows are padded with zeros.

        Each row comes out as if it were decoded alone, as long as mel is zero beyond its length.
        """
        config = self.config
        rows = _Keep(lengths, mel.device) if min(lengths) < max(lengths) else None
        # The causal network never looks right of the source or the mel, where its padding would be seen.
        keep = None if self.causal else rows
        spectrum = _scaled(rows, self.hops, 1)(self._analyse(source, lengths))

        x = _scaled(keep, 1)(self.conv_pre(mel))
        rate, kernels = 1, len(config.res_kernels)
        for index, up in enumerate(self.ups):
            last = index == len(self.ups) - 1
            rate *= config.up_rates[index]
            kept = _scaled(keep, rate, 1 if last else 0)
            x = up(F.leaky_relu(x, config.slope))
            if last:
                x = F.pad(x, (1, 0), mode="reflect")
            driven = kept(self.source_downs[index](spectrum))
            x = kept(x) + self.source_resblocks[index](driven, kept)
            blocks = self.resblocks[index * kernels : (index + 1) * kernels]
            x = sum((block(x, kept) for block in blocks[1:]), start=blocks[0](x, kept)) / kernels
        x = self.conv_post(F.leaky_relu(x))
        magnitude, angle = x.split(config.n_fft // 2 + 1, dim=1)
        magnitude, angle = magnitude.exp().clamp(max=1e2), angle.sin()
        bins = torch.cat([magnitude * angle.cos(), magnitude * angle.sin()], dim=1)
        return self._synthesise(bins, rows).clamp(-config.limit, config.limit)

    def _analyse(self, source: Tensor, lengths: Sequence[int]) -> Tensor:
        """Short-time Fourier transform, each row mirrored at its own ends: (B, 480 T) -> (B, n_fft + 2, 120 T + 1)."""
        half = self.config.n_fft // 2
        if min(lengths) == max(lengths):
            mirrored = F.pad(source[:, None], (half, half), mode="reflect")
        else:
            samples = to_device(lengths, source.device)[:, None] * self.frame
            index = torch.arange(-half, source.shape[1] + half, device=source.device)[None, :].abs()
            index = torch.where(index < samples, index, 2 * (samples - 1) - index).clamp(min=0)
            mirrored = source.gather(1, index)[:, None]
        return F.conv1d(mirrored, self.analysis, stride=self.config.hop)

    def _synthesise(self, bins: Tensor, rows: _Keep | None) -> Tensor:
        """Inverse transform: (B, n_fft + 2, 120 T + 1) -> (B, 480 T), each row divided by its own window sum."""
        half, hop = self.config.n_fft // 2, self.config.hop
        present = _scaled(rows, self.hops, 1)(torch.ones_like(bins[: 1 if rows is None else None, :1]))
        wave = F.conv_transpose1d(bins * present, self.synthesis, stride=hop)
        weight = F.conv_transpose1d(present, self.window, stride=hop)
        wave, weight = wave[:, 0, half:-half], weight[:, 0, half:-half]
        return wave / weight.clamp(min=1e-8)


RECEPTIVE_FIELD = {2: (14, 14), 3: (28, 5)}
"""Model version -> mel frames to the left and right. Measured in tests/unit/modules/test_vocoder.py."""


class _Keep:
    """Zeroes what lies beyond each row's end, at any multiple of the mel's rate."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths = to_device(lengths, device)[:, None, None]

    def at(self, rate: int, extra: int) -> Keep:
        mask: Tensor | None = None

        def keep(x: Tensor) -> Tensor:
            nonlocal mask
            if mask is None:
                mask = torch.arange(x.shape[2], device=x.device) < self.lengths * rate + extra
            return x.mul_(mask)

        return keep


def _scaled(keep: _Keep | None, rate: int, extra: int = 0) -> Keep:
    return (lambda x: x) if keep is None else keep.at(rate, extra)


def fourier_bases(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The transforms as convolutions: analysis (size + 2, 1, size), synthesis (size + 2, 1, size) and the squared
    window (1, 1, size). Channels are the real parts of the size/2 + 1 bins, then the imaginary; the window is a
    periodic Hann."""
    step = torch.arange(size, dtype=torch.float64, device="cpu")
    bins = torch.arange(size // 2 + 1, dtype=torch.float64, device="cpu")
    window = 0.5 - 0.5 * (2 * torch.pi * step / size).cos()
    angle = 2 * torch.pi * bins[:, None] * step / size
    forward = torch.cat([angle.cos(), -angle.sin()])
    # A real signal's inverse takes every bin but the first and the last twice.
    twice = torch.full_like(bins, 2.0)
    twice[0] = twice[-1] = 1.0
    backward = forward * torch.cat([twice, twice])[:, None] / size
    shape = (-1, 1, size)
    return (
        (forward * window).reshape(shape).float(),
        (backward * window).reshape(shape).float(),
        window.square().reshape(shape).float(),
    )
