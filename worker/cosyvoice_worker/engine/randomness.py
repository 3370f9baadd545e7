"""Random numbers drawn by counter: a draw depends on (seed, sentence, stage, position) and on nothing else.

So a request gets the same draws alone and in a batch, at once or in pieces, on a CPU and on a GPU. The generator is
Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; constants from there), written in
64-bit integer tensor operations, which every torch device computes alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF
_LANES = 4


class Stage(IntEnum):
    """What a draw is for; part of its address."""

    SAMPLING = 1
    VOCODER = 2


@dataclass(frozen=True, slots=True)
class Draws:
    """The endless line of draws of one stage of one sentence."""

    seed: int
    sentence: int
    stage: Stage

    def uniform(self, start: int, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Draws `start .. start+count` as (count,) float32 in the open interval (0, 1)."""
        words, skip = self._words(start, count, device)
        return _to_unit(words).flatten()[skip : skip + count]

    def normal(self, start: int, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Draws `start .. start+count` as (count,) float32 of the standard normal distribution (Box-Muller)."""
        words, skip = self._words(start, count, device)
        radius, angle = _to_unit(words).view(-1, 2, 2).unbind(-1)
        radius = radius.log_().mul_(-2).sqrt_()
        angle = angle * (2 * math.pi)
        return torch.stack((radius * angle.cos(), radius * angle.sin()), -1).flatten()[skip : skip + count]

    def _words(self, start: int, count: int, device: torch.device | str) -> tuple[torch.Tensor, int]:
        """The (n, 4) 32-bit words, in int64, that cover the wanted draws, and how many to skip of them."""
        first, last = start // _LANES, -(-(start + count) // _LANES)
        position = torch.arange(first, last, dtype=torch.int64, device=device)
        key = (self.seed & _MASK, (self.seed >> 32) & _MASK)
        return philox(key, (position & _MASK, position >> 32, self.stage, self.sentence)), start - first * _LANES


def philox(key: tuple[int, int], counter: tuple[torch.Tensor, torch.Tensor, int, int]) -> torch.Tensor:
    """Philox4x32-10 of each counter: (n, 4) int64 holding 32-bit words. Counter words 0, 1 are (n,), 2, 3 constants."""
    c0, c1 = counter[0], counter[1]
    c2, c3 = torch.full_like(c0, counter[2]), torch.full_like(c0, counter[3])
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The product of two 32-bit words wraps in int64, but its bits are the right ones.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), -1)


def _to_unit(words: torch.Tensor) -> torch.Tensor:
    """32-bit words -> float32 in (0, 1): 23 bits and a half, so that neither 0 nor 1 can be rounded to."""
    return ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23
