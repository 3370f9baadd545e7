"""One token for each running sentence, in batches of a few fixed shapes.

Rows and block tables are padded to a shape. On CUDA each shape is captured once as a graph and then replayed, because
launching a decode step's hundreds of small kernels takes longer than running them. With one single shape a row's
result does not depend on who else runs: the opt-in fixed batch, under which a seeded request is the same audio again
on a GPU too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from cosyvoice_worker.engine.blocks import BLOCK_SIZE, Attention, KVCache
from cosyvoice_worker.engine.modules.qwen2 import SpeechLM
from cosyvoice_worker.engine.modules.sampling import sample
from cosyvoice_worker.models.directory import SamplingConfig

log = logging.getLogger(__name__)

NOT_FINITE = -1
"""Stands for a token where the logits were not finite."""
COLUMNS = 8
"""Block tables are padded to multiples of that many blocks: 256 positions, 10 s of speech."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a decode step needs to know of each row; arrays with one entry per row."""

    last: np.ndarray
    """(n,) int64: the token said last."""
    past: np.ndarray
    """(n,) int64: positions in the cache, which is this one's own position."""
    tables: np.ndarray
    """(n, columns) int64: its blocks."""
    recent: np.ndarray
    """(n, window) int64: the last tokens, -1 where there is none."""
    uniforms: np.ndarray
    """(n, 2) float32: its draws."""
    below: np.ndarray
    """(n,) bool: it may not stop yet."""


class Decoding:
    """Runs `Rows` through model and sampling. Writes nothing but the cache, so that a step may be repeated."""

    def __init__(
        self,
        model: SpeechLM,
        cache: KVCache,
        sampling: SamplingConfig,
        *,
        slots: int,
        columns: int,
        spare: int,
        fixed: bool,
    ) -> None:
        """`columns`: width of the longest block table; `spare`: a block that no sentence has, for rows that are
        padding; `fixed`: always that many rows and columns."""
        self._model, self._cache, self._sampling = model, cache, sampling
        self._slots, self._columns, self._spare, self._fixed = slots, columns, spare, fixed
        self._device = cache.data.device
        stops = torch.zeros(model.vocab_size, dtype=torch.bool)
        stops[list(model.stop_ids)] = True
        self._stops = stops.to(self._device)
        self._offsets = torch.arange(columns * BLOCK_SIZE).to(self._device)
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, dict[str, Tensor], Tensor]] = {}
        self._capture = self._device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self._capture else None

    def __call__(self, rows: Rows) -> Tensor:
        """(n,) int64 on the device: the next token of each row, `NOT_FINITE` where there is none."""
        count, columns = len(rows.last), rows.tables.shape[1]
        shape = self.shape(count, columns)
        host = {field.name: self._padded(getattr(rows, field.name), field.name, shape) for field in fields(rows)}
        if self._capture:
            return self._replayed(shape, host)[:count]
        return self.tokens(**{name: tensor.to(self._device) for name, tensor in host.items()})[:count]

    def shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and block columns that such a batch is padded to."""
        if self._fixed:
            return self._slots, self._columns
        return min(self._slots, 1 << (rows - 1).bit_length()), min(self._columns, -(-columns // COLUMNS) * COLUMNS)

    def tokens(
        self, *, last: Tensor, past: Tensor, tables: Tensor, recent: Tensor, uniforms: Tensor, below: Tensor
    ) -> Tensor:
        """One step; nothing here waits for the device, and shapes follow from the arguments' alone."""
        positions = self._offsets[: tables.shape[1] * BLOCK_SIZE]
        read_from = (tables[:, :, None] * BLOCK_SIZE + self._offsets[:BLOCK_SIZE]).flatten(1)
        write_to = read_from.gather(1, past[:, None])[:, 0]
        visible = (positions <= past[:, None])[:, None, None]
        attention = Attention(self._cache, write_to, (), read_from, visible)
        hidden = self._model(self._model.embed_speech(last), past, attention)
        return self.sampled(self._model.speech_logits(hidden), recent, uniforms, below)

    def sampled(self, logits: Tensor, recent: Tensor, uniforms: Tensor, below: Tensor | None) -> Tensor:
        """(n, vocabulary) float32 logits -> (n,) tokens; `below` None: every row may stop."""
        banned = None if below is None else below[:, None] & self._stops
        tokens = sample(logits, recent, uniforms, banned, self._sampling)
        return torch.where(logits.sum(-1).isfinite(), tokens, NOT_FINITE)

    def _padded(self, values: np.ndarray, name: str, shape: tuple[int, int]) -> Tensor:
        wanted = (shape[0], shape[1] if name == "tables" else values.shape[1]) if values.ndim > 1 else (shape[0],)
        padded = np.full(wanted, self._spare if name == "tables" else 0, dtype=values.dtype)
        padded[tuple(slice(size) for size in values.shape)] = values
        if name == "tables":  # beyond its own blocks a row reads its first one, which is masked
            padded[: len(values), values.shape[1] :] = values[:, :1]
        return torch.from_numpy(padded)

    def _replayed(self, shape: tuple[int, int], host: dict[str, Tensor]) -> Tensor:
        if shape not in self._graphs:
            inputs = {name: tensor.to(self._device) for name, tensor in host.items()}
            self.tokens(**inputs)  # libraries set themselves up in the first call, which a capture forbids
            torch.cuda.current_stream(self._device).synchronize()
            graph = torch.cuda.CUDAGraph()
            # thread_local: flow and vocoder may work in a thread of their own meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                output = self.tokens(**inputs)
            self._graphs[shape] = graph, inputs, output
            log.info("captured a decode graph", extra={"rows": shape[0], "positions": shape[1] * BLOCK_SIZE})
        graph, inputs, output = self._graphs[shape]
        for name, tensor in host.items():
            inputs[name].copy_(tensor, non_blocking=True)
        graph.replay()
        return output.clone()  # the next replay, of whatever shape, writes there
