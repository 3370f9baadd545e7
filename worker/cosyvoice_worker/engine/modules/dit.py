"""v3: estimator of the flow's velocity, a diffusion transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_worker.engine.modules.layers import Conditions, sinusoid
from cosyvoice_worker.models.directory import DiTConfig

_TIME = 256
_POSITION_KERNEL = 31
_POSITION_GROUPS = 16


class TimeEmbedding(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(_TIME, size), nn.SiLU(), nn.Linear(size, size))

    def forward(self, t: Tensor, like: Tensor) -> Tensor:
        output: Tensor = self.time_mlp(sinusoid(t, _TIME).to(like.dtype))
        return output


class PositionEmbedding(nn.Module):
    """Two causal grouped convolutions: what position a frame has follows from its left neighbours."""

    def __init__(self, size: int) -> None:
        super().__init__()

        def conv() -> nn.Sequential:
            return nn.Sequential(nn.Conv1d(size, size, _POSITION_KERNEL, groups=_POSITION_GROUPS), nn.Mish())

        self.conv1 = conv()
        self.conv2 = conv()

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        for conv in (self.conv1, self.conv2):
            x = conv(F.pad(x, (_POSITION_KERNEL - 1, 0)))
        return x.transpose(1, 2)


class InputEmbedding(nn.Module):
    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, size)
        self.conv_pos_embed = PositionEmbedding(size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        output: Tensor = x + self.conv_pos_embed(x)
        return output


class Modulation(nn.Module):
    """Shifts, scales and gates of a block, from the time embedding."""

    def __init__(self, size: int, parts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, parts * size)
        self.parts = parts

    def forward(self, time: Tensor) -> tuple[Tensor, ...]:
        """(B, size) -> `parts` tensors (B, 1, size)."""
        together: Tensor = self.linear(F.silu(time))
        return together[:, None].chunk(self.parts, dim=-1)


class Attention(nn.Module):
    def __init__(self, size: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.to_q = nn.Linear(size, heads * head_dim)
        self.to_k = nn.Linear(size, heads * head_dim)
        self.to_v = nn.Linear(size, heads * head_dim)
        self.to_out = nn.Sequential(nn.Linear(heads * head_dim, size))

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        # The model was trained with the rotation applied before the split into heads, so head 0 alone is rotated.
        q, k = _rotate_first(self.to_q(x), rotation), _rotate_first(self.to_k(x), rotation)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, self.to_v(x)))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        output: Tensor = self.to_out(out.transpose(1, 2).flatten(2))
        return output


def _rotate_first(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates the first channels of x (B, T, channels), neighbours paired; rotation is cos, sin (T, pairs)."""
    cos, sin = rotation
    count = 2 * cos.shape[-1]
    even, odd = x[..., 0:count:2].float(), x[..., 1:count:2].float()
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., count:]], dim=-1)


class FeedForward(nn.Module):
    def __init__(self, size: int, mult: int) -> None:
        super().__init__()
        inner = mult * size
        self.ff = nn.Sequential(
            nn.Sequential(nn.Linear(size, inner), nn.GELU(approximate="tanh")), nn.Identity(), nn.Linear(inner, size)
        )

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.ff(x)
        return output


class Block(nn.Module):
    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.attn_norm = Modulation(config.dim, 6)
        self.attn = Attention(config.dim, config.heads, config.head_dim)
        self.ff = FeedForward(config.dim, config.ff_mult)

    def forward(self, x: Tensor, time: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        shift, scale, gate, ff_shift, ff_scale, ff_gate = self.attn_norm(time)
        x = x + gate * self.attn(_norm(x) * (1 + scale) + shift, rotation, mask)
        output: Tensor = x + ff_gate * self.ff(_norm(x) * (1 + ff_scale) + ff_shift)
        return output


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


class DiT(nn.Module):
    def __init__(self, config: DiTConfig, mel: int) -> None:
        super().__init__()
        self.time_embed = TimeEmbedding(config.dim)
        self.input_embed = InputEmbedding(4 * mel, config.dim)
        self.transformer_blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm_out = Modulation(config.dim, 2)
        self.proj_out = nn.Linear(config.dim, mel)
        self.frequencies: Tensor
        channel = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu")
        self.register_buffer("frequencies", 1 / 10000.0 ** (channel / config.head_dim), persistent=False)

    def forward(self, x: Tensor, t: Tensor, given: Conditions) -> Tensor:
        """Velocity at time t; arguments and result as in `unet.UNet.forward`."""
        steps = x.shape[1]
        time = self.time_embed(t, x)
        speaker = given.speaker[:, None].expand(-1, steps, -1)
        x = self.input_embed(torch.cat([x, given.cond, given.mu, speaker], dim=-1))
        angle = torch.arange(steps, device=x.device)[:, None] * self.frequencies.float()
        rotation = angle.cos(), angle.sin()
        mask = None if given.mask is None else given.mask[:, None]
        for block in self.transformer_blocks:
            x = block(x, time, rotation, mask)
        scale, shift = self.norm_out(time)
        output: Tensor = self.proj_out(_norm(x) * (1 + scale) + shift)
        return output
