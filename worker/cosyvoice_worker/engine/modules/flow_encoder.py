"""v2: speech tokens to mel-rate features, a conformer (without convolution modules) that doubles the rate half-way."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosyvoice_worker.engine.modules.layers import CausalConv, attention_mask
from cosyvoice_worker.models.directory import EncoderConfig


class Lookahead(nn.Module):
    """Lets a token see the `ahead` tokens after it and two before, added to what it is."""

    def __init__(self, size: int, inner: int, ahead: int) -> None:
        super().__init__()
        self.conv1 = CausalConv(size, inner, ahead + 1, ahead=ahead)
        self.conv2 = CausalConv(inner, size, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, size) -> (B, T, size). What is no token must be zero in x."""
        output: Tensor = x + self.conv2(F.leaky_relu(self.conv1(x)))
        return output


class Embed(nn.Module):
    """Linear, layer norm, and the transformer's scale."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(inputs, size), nn.LayerNorm(size))
        self.scale = math.sqrt(size)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.out(x) * self.scale
        return output


class RelativeAttention(nn.Module):
    """Self-attention with relative positions (Transformer-XL's, with ESPnet's table of 2T - 1 positions)."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear_q = nn.Linear(size, size)
        self.linear_k = nn.Linear(size, size)
        self.linear_v = nn.Linear(size, size)
        self.linear_out = nn.Linear(size, size)
        self.linear_pos = nn.Linear(size, size, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(heads, size // heads))
        self.pos_bias_v = nn.Parameter(torch.empty(heads, size // heads))

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """x (B, T, size), mask (B, T, T) bool, positions (2T - 1, size) from T - 1 down to -(T - 1)."""
        batch, steps, size = x.shape
        q, k, v = (
            linear(x).view(batch, steps, self.heads, -1).transpose(1, 2)
            for linear in (self.linear_q, self.linear_k, self.linear_v)
        )
        p = self.linear_pos(positions).view(2 * steps - 1, self.heads, -1).permute(1, 2, 0)
        by_distance = (q + self.pos_bias_v[:, None]) @ p
        scale = 1 / math.sqrt(size // self.heads)
        bias = (_shift(by_distance) * scale).masked_fill(~mask[:, None], -torch.inf)
        out = F.scaled_dot_product_attention(q + self.pos_bias_u[:, None], k, v, attn_mask=bias)
        output: Tensor = self.linear_out(out.transpose(1, 2).reshape(batch, steps, size))
        return output


def _shift(by_distance: Tensor) -> Tensor:
    """(B, heads, T, 2T - 1) scores by distance T-1 .. -(T-1) -> (B, heads, T, T) scores by key position.

    Query i needs entries T-1-i .. 2T-2-i, which is a view of the same memory with a row stride shorter by one.
    """
    batch, heads, steps, distances = by_distance.shape
    flat = by_distance.contiguous()
    return flat.as_strided(
        (batch, heads, steps, steps),
        (heads * steps * distances, steps * distances, distances - 1, 1),
        flat.storage_offset() + steps - 1,
    )


class FeedForward(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(size, inner)
        self.w_2 = nn.Linear(inner, size)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.w_2(F.silu(self.w_1(x)))
        return output


class ConformerLayer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(config.size, config.heads)
        self.feed_forward = FeedForward(config.size, config.linear)
        self.norm_mha = nn.LayerNorm(config.size, eps=1e-12)
        self.norm_ff = nn.LayerNorm(config.size, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm_mha(x), mask, positions)
        output: Tensor = x + self.feed_forward(self.norm_ff(x))
        return output


class Upsample(nn.Module):
    """Repeats each step and smooths with a causal convolution."""

    def __init__(self, size: int, factor: int = 2) -> None:
        super().__init__()
        self.factor = factor
        self.conv = CausalConv(size, size, 2 * factor + 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.conv(x.repeat_interleave(self.factor, dim=1))
        return output


class FlowEncoder(nn.Module):
    def __init__(self, config: EncoderConfig, inputs: int, ahead: int, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk
        self.size = config.size
        self.embed = Embed(inputs, config.size)
        self.pre_lookahead_layer = Lookahead(config.size, config.size, ahead)
        self.encoders = nn.ModuleList(ConformerLayer(config) for _ in range(config.layers))
        self.up_layer = Upsample(config.size)
        self.up_embed = Embed(inputs, config.size)
        self.up_encoders = nn.ModuleList(ConformerLayer(config) for _ in range(config.up_layers))
        self.after_norm = nn.LayerNorm(config.size, eps=1e-5)

    def forward(self, x: Tensor, given: Tensor, wanted: Tensor, streaming: Tensor) -> Tensor:
        """x (B, T, inputs) token embeddings -> (B, 2T, size) features, two per token.

        given (B,) int64: tokens of each row; wanted (B,): the first of them, for which features are made; the rest is
        look-ahead only. streaming (B,) bool: block-causal attention. Features beyond wanted are meaningless.
        """
        steps = x.shape[1]
        x = self.embed(x)
        # Linear and layer norm make padding non-zero, and the look-ahead would read it.
        x = x * (torch.arange(steps, device=x.device)[None, :] < given[:, None])[..., None]
        x = self.pre_lookahead_layer(x)
        mask = attention_mask(wanted, steps, streaming, self.chunk)
        positions = relative_positions(steps, self.size, x)
        for layer in self.encoders:
            x = layer(x, mask, positions)
        x = self.up_embed(self.up_layer(x))
        factor = self.up_layer.factor
        mask = attention_mask(wanted * factor, steps * factor, streaming, self.chunk * factor)
        positions = relative_positions(steps * factor, self.size, x)
        for layer in self.up_encoders:
            x = layer(x, mask, positions)
        output: Tensor = self.after_norm(x)
        return output


def relative_positions(steps: int, size: int, like: Tensor) -> Tensor:
    """Sinusoids of the distances steps-1 .. -(steps-1): (2 steps - 1, size), sine and cosine interleaved."""
    distance = torch.arange(steps - 1, -steps, -1, device=like.device, dtype=torch.float32)
    frequency = torch.exp(
        torch.arange(0, size, 2, device=like.device, dtype=torch.float32) * -(math.log(10000.0) / size)
    )
    angle = distance[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).to(like.dtype)
