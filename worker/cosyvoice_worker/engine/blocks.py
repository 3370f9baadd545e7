"""The KV cache: one preallocated tensor cut into blocks, and the attention that reads and writes it.

`BlockPool` is bookkeeping (which block belongs to whom), `KVCache` the tensor, `Attention` the `attend` of one forward
pass over a mixed batch: some rows prefill a whole prompt, the others decode one position each.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from dataclasses import dataclass

import torch
import torch.nn.functional as F

BLOCK_SIZE = 32
"""Positions per block: 1.3 s of speech; at most that much is wasted per sequence."""


class BlockPool:
    """Free blocks by number. Knows no tensors and no sequences."""

    def __init__(self, count: int) -> None:
        self.total = count
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` blocks; the scheduler only plans what is free, so running out here is a fault."""
        if count > len(self._free):
            raise RuntimeError(f"{count} KV blocks wanted, {len(self._free)} free of {self.total}")
        return [self._free.pop() for _ in range(count)]

    def give(self, blocks: list[int]) -> None:
        """Take back all of `blocks`, and empty the list."""
        self._free.extend(blocks)
        blocks.clear()


def blocks_for(positions: int) -> int:
    return -(-positions // BLOCK_SIZE)


class KVCache:
    """Keys and values of all layers, `(layers, blocks * BLOCK_SIZE, 2, kv_heads, head_dim)`."""

    def __init__(
        self, *, layers: int, blocks: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.data = torch.zeros(layers, blocks * BLOCK_SIZE, 2, kv_heads, head_dim, dtype=dtype, device=device)

    def release(self) -> None:
        """Give the memory back. The last call."""
        self.data = self.data[:0].clone()

    @staticmethod
    def bytes_per_block(*, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return layers * BLOCK_SIZE * 2 * kv_heads * head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Attention:
    """`attend` of one forward pass whose flat rows are: each prefill's positions in order, then one row per decode.

    Keys and values of this pass are written to the cache first, in one go for all rows, and read back by the decoding
    rows through their block tables, padded to the longest.
    """

    cache: KVCache
    write_to: torch.Tensor
    """(N,) cache position of every row."""
    prefills: tuple[int, ...]
    """Rows of each prefill."""
    read_from: torch.Tensor | None = None
    """(D, L) cache positions of the decoding rows' pasts, themselves included; None without decoding rows."""
    visible: torch.Tensor | None = None
    """(D, 1, 1, L) bool: which of them exist."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q (N, heads, d), k and v (N, kv_heads, d) -> (N, heads, d)."""
        store = self.cache.data[layer]
        store.index_copy_(0, self.write_to, torch.stack((k, v), 1).to(store.dtype))
        outputs: list[torch.Tensor] = []
        start = 0
        for length in self.prefills:
            rows = slice(start, start + length)
            outputs.append(_prefill(q[rows], k[rows], v[rows]))
            start += length
        if self.read_from is not None and self.visible is not None:
            past = store[self.read_from].to(q.dtype)
            outputs.append(_decode(q[start:], past[:, :, 0], past[:, :, 1], self.visible))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[0].transpose(0, 1)


def _decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """q (D, heads, d), k and v (D, L, kv_heads, d), visible (D, 1, 1, L).

    The query heads that share a key head stand where query positions usually do: they see the same keys under the same
    mask, so grouped attention needs no copy of the keys.
    """
    rows, heads, dim = q.shape
    grouped = q.reshape(rows, k.shape[2], -1, dim)
    out = F.scaled_dot_product_attention(grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=visible)
    return out.reshape(rows, heads, dim)


def cache_positions(blocks: Row[int], start: int, stop: int) -> list[int]:
    """Cache positions of a sequence's positions `start..stop`."""
    return [blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, stop)]
