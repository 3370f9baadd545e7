"""How much one engine takes on, from its model and its device: the engine's own choices where settings say 0."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from cosyvoice_worker.device.select import DeviceError
from cosyvoice_worker.engine.blocks import BLOCK_SIZE, KVCache, blocks_for
from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.modules.flow import MAX_FRAMES
from cosyvoice_worker.engine.scheduler import FRAMES_PER_TOKEN, Chunking, Limits

LONGEST_SENTENCE = 4096
"""Positions of one sentence: 30 s of prompt (750), 150 tokens of text, 20 speech tokens for each of those."""
TYPICAL_SENTENCE = 1024
"""Positions that a sentence is expected to need, prompt included; the cache is made for that many per slot."""

CACHE_SHARE = 0.4
"""Of the GPU memory that is free once the model is loaded: the rest is for the flow's and the vocoder's batches."""


@dataclass(frozen=True, slots=True)
class Sizing:
    limits: Limits
    chunking: Chunking
    blocks: int
    """Of the KV cache."""
    longest: int
    """Positions of one sentence at most."""
    max_speech_tokens: int
    """Speech tokens, the prompt's included, that the flow can take."""
    lanes: int = 1
    """Parts of an audio batch that run at once: on a CPU, so many as there are cores for torch's threads."""


def cpu_threads() -> int:
    """Threads of torch on a CPU: half of the cores that this process may use, unless OMP_NUM_THREADS says otherwise.

    The other half serves HTTP and encodes. On a machine without a core to spare two threads that wait for each other
    were measured at a third to a half of one thread's speed (docs/engine.md), so fewer is the safe side.
    """
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() and int(said) > 0 else max(1, len(os.sched_getaffinity(0)) // 2)


def size_for(model: LoadedModel, *, max_running: int = 0, max_frames: int = 0, fixed: bool = False) -> Sizing:
    """CPU: small batches, as they cost time in proportion. CUDA: batches that fill the device.

    `fixed`: a request's audio does not depend on who else runs, at the price of all that batches save.
    """
    on_gpu = model.device.type == "cuda"
    slots = max_running or (64 if on_gpu else 16)
    frames = max_frames or (16_000 if on_gpu else 1_600)
    # The vocoder holds back what it sees to the right; a first window should give a fifth of a second beyond that.
    first = -(-model.vocoder.right // FRAMES_PER_TOKEN) + 5
    return Sizing(
        limits=Limits(
            max_running=slots,
            max_prefill_tokens=4096 if on_gpu else 1024,
            max_batch_frames=frames,
            rider_frames=4_000 if on_gpu else 0,
            urgent_seconds=0.5,
        ),
        chunking=Chunking(
            chunk=model.config.flow.chunk, lookahead=model.config.flow.lookahead, first=first, fixed=fixed
        ),
        blocks=_blocks(model, slots),
        longest=LONGEST_SENTENCE // BLOCK_SIZE * BLOCK_SIZE,
        max_speech_tokens=MAX_FRAMES // FRAMES_PER_TOKEN,
        lanes=1 if on_gpu or fixed else max(1, len(os.sched_getaffinity(0)) // cpu_threads()),
    )


def _blocks(model: LoadedModel, slots: int) -> int:
    """Of the KV cache: what the slots typically need, on a GPU within its free memory. Raises DeviceError."""
    wanted = max(blocks_for(LONGEST_SENTENCE), blocks_for(TYPICAL_SENTENCE) * slots)
    if model.device.type != "cuda":
        return wanted
    lm = model.lm
    size = KVCache.bytes_per_block(layers=lm.layer_count, kv_heads=lm.kv_heads, head_dim=lm.head_dim, dtype=model.dtype)
    free, _ = torch.cuda.mem_get_info(model.device)
    return affordable_blocks(wanted, size, free)


def affordable_blocks(wanted: int, size: int, free: int) -> int:
    """Blocks of `size` bytes within the cache's share of `free` bytes, at most `wanted`.

    Raises DeviceError where not even one longest sentence fits.
    """
    blocks = min(wanted, int(free * CACHE_SHARE) // size)
    if blocks < blocks_for(LONGEST_SENTENCE):
        raise DeviceError(
            f"the GPU has {free >> 20} MiB left beside the model, which gives {blocks} cache blocks; one sentence may "
            f"need {blocks_for(LONGEST_SENTENCE)}: use a larger card, or let no other process use this one"
        )
    return blocks
