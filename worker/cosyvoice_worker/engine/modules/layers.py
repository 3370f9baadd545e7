"""Layers that several of the flow's networks share. Everything is (batch, time, channels)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the estimators of the flow's velocity are given besides the noised mel; the same in every Euler step."""

    mu: Tensor
    """(B, T, mel): the encoded speech tokens."""
    cond: Tensor
    """(B, T, mel): the prompt's mel, zero after it."""
    speaker: Tensor
    """(B, mel)."""
    mask: Tensor | None
    """(B, T, T) from `attention_mask`, bool or `added`; None where every frame sees every other."""


class CausalConv(nn.Module):
    """Convolution over time that sees `kernel - 1 - ahead` steps to the left and `ahead` to the right."""

    def __init__(self, inputs: int, outputs: int, kernel: int, ahead: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.sides = (kernel - 1 - ahead, ahead)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, inputs) -> (B, T, outputs); zeros stand to the left of the first and right of the last step."""
        if self.weight.shape[2] == 1:
            return F.linear(x, self.weight[:, :, 0], self.bias)
        padded = F.pad(x.transpose(1, 2), self.sides)
        return F.conv1d(padded, self.weight, self.bias).transpose(1, 2)


def sinusoid(t: Tensor, size: int, scale: float = 1000.0) -> Tensor:
    """Embedding of times t (n,) in 0..1 -> (n, size): sines, then cosines, of `size / 2` falling frequencies."""
    half = size // 2
    frequencies = torch.exp(torch.arange(half, device=t.device).float() * -(math.log(10000) / (half - 1)))
    angle = scale * t.float()[:, None] * frequencies
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def attention_mask(lengths: Tensor, steps: int, streaming: Tensor, chunk: int) -> Tensor:
    """Which steps each step may look at: (B, steps, steps) bool, rows are queries.

    lengths (B,) int64: valid steps. streaming (B,) bool: such a row sees its own chunk of `chunk` steps and all before
    it; the others see everything. Padding is never seen (but sees, which keeps every softmax defined).
    """
    index = torch.arange(steps, device=lengths.device)
    valid = index[None, :] < lengths[:, None]
    causal = index[None, :] < (index[:, None] // chunk + 1) * chunk
    return valid[:, None, :] & (causal[None] | ~streaming[:, None, None])


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as what attention adds to its scores, 0 or -inf: else every call makes that anew."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)


def to_device(values: Sequence[int] | Sequence[bool], device: torch.device) -> Tensor:
    """(n,) int64 or bool, without waiting for the device: `torch.tensor(values, device=...)` waits for its copy."""
    return torch.tensor(values).to(device, non_blocking=True)


def in_float32(module: nn.Module, *inputs: Any) -> Any:
    """`module(*inputs)` with weights of half precision brought to float32 for this one call, which they slow down."""
    weights = {
        name: tensor.float()
        for name, tensor in chain(module.named_parameters(), module.named_buffers())
        if tensor.dtype in (torch.float16, torch.bfloat16)
    }
    return functional_call(module, weights, inputs)
