"""Flow matching: speech tokens to mel frames, for a batch of windows of different streams.

A window is all that a stream's next mel frames depend on: its prompt, its tokens so far and, unless it is the last, the
look-ahead. Windows of any length, streaming or whole, final or not, go through one padded batch, the conditional and
the unconditional half together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_worker.engine.modules.dit import DiT
from cosyvoice_worker.engine.modules.flow_encoder import FlowEncoder, Lookahead
from cosyvoice_worker.engine.modules.layers import Conditions, added, attention_mask
from cosyvoice_worker.engine.modules.unet import UNet
from cosyvoice_worker.models.directory import FlowConfig

MAX_FRAMES = 15000
"""Mel frames of a window at most, its prompt included: 300 s, the length of the official noise buffer."""


class WindowTooLong(ValueError):
    """Prompt and tokens of one sentence need more than MAX_FRAMES mel frames."""


@dataclass(frozen=True, slots=True)
class Window:
    """What one stream wants turned into mel."""

    tokens: Tensor
    """(N,) int64: speech tokens from the start of the sentence, the look-ahead included unless `final`."""
    prompt_tokens: Tensor
    """(P,) int64; empty for a preset voice."""
    prompt_mel: Tensor
    """(F, mel) float32, F normally 2P."""
    embedding: Tensor
    """(speaker,) float32."""
    final: bool
    """No more tokens follow; otherwise the last `lookahead` tokens are context only."""
    streaming: bool
    """Block-causal attention, so that frames do not change when more tokens come; False: every frame sees all."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A padded batch ready for the estimator."""

    given: Conditions
    new: tuple[tuple[int, int], ...]
    """(first, last + 1) of each row's frames that follow its prompt."""


class Flow(nn.Module):
    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.input_embedding = nn.Embedding(config.vocab, config.embedding)
        self.spk_embed_affine_layer = nn.Linear(config.speaker, config.mel)
        self.encoder: FlowEncoder | None = None
        self.encoder_proj: nn.Linear | None = None
        self.pre_lookahead_layer: Lookahead | None = None
        self.estimator: UNet | DiT
        if config.encoder is not None and config.unet is not None:
            self.encoder = FlowEncoder(config.encoder, config.embedding, config.lookahead, config.chunk)
            self.encoder_proj = nn.Linear(config.encoder.size, config.mel)
            self.estimator = UNet(config.unet, config.mel)
        elif config.dit is not None:
            self.pre_lookahead_layer = Lookahead(config.embedding, config.dit.lookahead_channels, config.lookahead)
            self.estimator = DiT(config.dit, config.mel)
        self.noise: Tensor
        self.register_buffer("noise", initial_noise(config.mel), persistent=False)
        times, self.steps = euler_schedule(config.steps)
        """Lengths of the Euler steps."""
        self.times: Tensor
        """(steps,): when the estimator is asked. On the device, so that no step waits for a copy."""
        self.register_buffer("times", torch.tensor(times, device="cpu"), persistent=False)

    def frames(self, tokens: int, prompt: int, final: bool) -> int:
        """Mel frames, the prompt's included, of a window of that many tokens."""
        return (prompt + tokens - (0 if final else self.config.lookahead)) * self.config.ratio

    def forward(self, windows: Sequence[Window]) -> list[Tensor]:
        """New mel frames of each window, those of its prompt left out: (mel, frames) float32 each."""
        encoded = self.encode(windows)
        mel = self.solve(encoded.given)
        return [mel[row, first:last].T for row, (first, last) in enumerate(encoded.new)]

    def encode(self, windows: Sequence[Window]) -> Encoded:
        """Everything that does not change from step to step. Raises WindowTooLong."""
        config, weight = self.config, self.spk_embed_affine_layer.weight
        given = [w.prompt_tokens.shape[0] + w.tokens.shape[0] for w in windows]
        wanted = [n if w.final else n - config.lookahead for n, w in zip(given, windows, strict=True)]
        totals = [n * config.ratio for n in wanted]
        if max(totals) > MAX_FRAMES:
            raise WindowTooLong(f"{max(totals)} mel frames with the prompt; the model's limit is {MAX_FRAMES} (300 s)")
        steps, frames = max(given), max(totals)

        tokens = torch.zeros(len(windows), steps, dtype=torch.int64)
        cond = torch.zeros(len(windows), frames, config.mel)
        for row, window in enumerate(windows):
            prompt, end = window.prompt_tokens.shape[0], given[row]
            tokens[row, :prompt] = window.prompt_tokens
            tokens[row, prompt:end] = window.tokens
            cond[row, : window.prompt_mel.shape[0]] = window.prompt_mel
        device, dtype = weight.device, weight.dtype
        tokens = tokens.to(device, non_blocking=True)
        embedding = torch.stack([w.embedding for w in windows]).to(device, non_blocking=True)
        rows = torch.tensor([given, wanted, totals, [int(w.streaming) for w in windows]])
        rows = rows.to(device, non_blocking=True)
        streaming = rows[3].bool()

        valid = torch.arange(steps, device=device)[None, :] < rows[0][:, None]
        x = self.input_embedding(tokens) * valid[..., None]
        if self.encoder is not None and self.encoder_proj is not None:
            mu = self.encoder_proj(self.encoder(x, rows[0], rows[1], streaming))
        else:
            assert self.pre_lookahead_layer is not None
            mu = self.pre_lookahead_layer(x).repeat_interleave(config.ratio, dim=1)
        plain = min(totals) == frames and not any(w.streaming for w in windows)
        given_all = Conditions(
            mu=mu[:, :frames],
            cond=cond.to(device=device, dtype=dtype, non_blocking=True),
            speaker=self.spk_embed_affine_layer(F.normalize(embedding.float(), dim=1).to(dtype)),
            mask=None if plain else attention_mask(rows[2], frames, streaming, config.chunk * config.ratio),
        )
        new = tuple((w.prompt_mel.shape[0], total) for w, total in zip(windows, totals, strict=True))
        return Encoded(given_all, new)

    def solve(self, given: Conditions) -> Tensor:
        """Euler steps from noise to mel: (B, T, mel) float32. Frames beyond a row's length are meaningless."""
        rows, frames, _ = given.mu.shape
        x = self.noise[:frames].expand(rows, -1, -1)
        both = Conditions(
            mu=torch.cat([given.mu, torch.zeros_like(given.mu)]),
            cond=torch.cat([given.cond, torch.zeros_like(given.cond)]),
            speaker=torch.cat([given.speaker, torch.zeros_like(given.speaker)]),
            mask=None if given.mask is None else added(given.mask, given.mu.dtype).repeat(2, 1, 1),
        )
        rate = self.config.cfg_rate
        for index, step in enumerate(self.steps):
            velocity = self.estimator(x.to(given.mu.dtype).repeat(2, 1, 1), self.times[index : index + 1], both)
            conditional, unconditional = velocity.float().chunk(2)
            x = x + step * ((1 + rate) * conditional - rate * unconditional)
        return x


def initial_noise(mel: int) -> Tensor:
    """(MAX_FRAMES, mel): where every window starts from. Seed 0 and the shape are the official ones, and part of what
    the model sounds like: all requests share it."""
    noise = torch.randn([1, mel, MAX_FRAMES], generator=torch.Generator().manual_seed(0), device="cpu")
    return noise[0].T.contiguous()


def euler_schedule(steps: int) -> tuple[list[float], list[float]]:
    """Times 1 - cos(pi/2 k/steps) and the step lengths between them, accumulated in float32 as the official code."""
    span = 1 - torch.cos(torch.linspace(0, 1, steps + 1, device="cpu") * 0.5 * torch.pi)
    time, times, lengths = span[0], [], []
    for target in span[1:]:
        length = target - time
        times.append(float(time))
        lengths.append(float(length))
        time = time + length
    return times, lengths
