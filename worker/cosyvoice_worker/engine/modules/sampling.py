"""Repetition-aware sampling (RAS), for all rows of a step at once on the device.

Semantics of the official function: draw from the nucleus; if that token is among the last `window` ones at least
`window * tau` times, draw again from the whole distribution without it. Randomness comes in as uniforms, so who owns
the seed is the caller's business.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cosyvoice_worker.models.directory import SamplingConfig


def nucleus(logits: Tensor, top_p: float, top_k: int) -> tuple[Tensor, Tensor]:
    """The candidates of each row: (B, V) float32 logits -> probabilities (B, k), ids (B, k), descending.

    A candidate belongs while the probabilities before it sum to less than top_p; those beyond have probability 0.
    Probabilities are those of the whole distribution, not normalised again. Equal ones stand in the order of their ids.
    """
    probabilities, ids = logits.softmax(dim=-1).topk(min(top_k, logits.shape[-1]))
    ids, order = ids.sort(dim=-1)
    probabilities, order = probabilities.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    before = F.pad(probabilities.cumsum(dim=-1)[:, :-1], (1, 0))
    return probabilities * (before < top_p), ids


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index drawn from each row of weights (B, n) >= 0 by inverting its cumulative sum at uniform (B,) in [0, 1)."""
    cumulative = weights.cumsum(dim=-1)
    threshold = uniform[:, None] * cumulative[:, -1:]
    # Rounding may put the threshold at the very end; the last index with weight is the answer then.
    last = (weights.shape[-1] - 1) - weights.flip(-1).ne(0).int().argmax(dim=-1)
    return torch.minimum((cumulative <= threshold).sum(dim=-1), last)


def sample(logits: Tensor, recent: Tensor, uniforms: Tensor, banned: Tensor | None, config: SamplingConfig) -> Tensor:
    """One token for each row.

    logits (B, V) float32; recent (B, window) int64: the last tokens of each row in any order, -1 where there is none;
    uniforms (B, 2) float32 in [0, 1): for the nucleus and for the second draw; banned (B, V) bool or None: ids that
    must not come (stop ids below the minimum length). -> (B,) int64.
    """
    if banned is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    probabilities, ids = nucleus(logits, config.top_p, config.top_k)
    first = ids.gather(1, draw(probabilities, uniforms[:, 0])[:, None])
    repeated = (recent == first).sum(dim=-1) >= config.window * config.tau
    others = logits.scatter(1, first, -torch.inf).softmax(dim=-1)
    second = draw(others, uniforms[:, 1])
    return torch.where(repeated, second, first[:, 0])
