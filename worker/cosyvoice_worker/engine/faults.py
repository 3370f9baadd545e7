"""What is done when a batch fails: who is at fault is found, and who only lacked memory is helped.

Where memory ran out, step by step (docs/engine.md, "Out of memory"): the allocator's cache is emptied and the batch is
run again; it is halved, down to one sentence at a time; that sentence is put back and computed again later; only then
it fails. What follows is planned smaller for a while.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

log = logging.getLogger(__name__)
Row = TypeVar("Row")
T = TypeVar("T")

EMPTY_CACHE, HALVE, PUT_BACK, GIVE_UP = STEPS = ("empty_cache", "halve", "put_back", "give_up")
"""The steps out of a lack of memory, in their order."""

SMALLEST_SHARE = 1 / 16
RECOVERY_SECONDS = 10.0
"""Without a lack of memory for so long, limits grow by a quarter: from the least to the full in two minutes."""
RECOVERY = 1.25


@dataclass(slots=True)
class MemoryPressure:
    """How much of its limits a stage uses, after memory ran out in it."""

    share: float = 1.0
    changed: float = 0.0
    """When, on the engine's clock."""

    def ran_out(self, now: float) -> None:
        self.share, self.changed = max(SMALLEST_SHARE, self.share / 2), now

    def recover(self, now: float) -> None:
        """To be called now and then."""
        if self.share < 1.0 and now - self.changed >= RECOVERY_SECONDS:
            self.share, self.changed = min(1.0, self.share * RECOVERY), now

    def of(self, limit: int) -> int:
        return max(1, int(limit * self.share))


@dataclass(slots=True)
class Faults:
    """Of one engine, for its metrics."""

    batches: int = 0
    """Batches that failed, for whatever reason."""
    out_of_memory: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(STEPS, 0)))
    """How often each step was taken."""

    def took(self, step: str, rows: int) -> None:
        self.out_of_memory[step] += 1
        log.warning("out of memory", extra={"step": step, "batch": rows})


def narrowed(
    rows: list[Row], run: Callable[[list[Row]], list[T]], faults: Faults, *, again: bool = False
) -> list[tuple[Row, T | Exception]]:
    """Each row with its result, or with the error that it raises when run alone, without its traceback.

    A batch that fails is halved until the rows at fault are alone. Where it only lacked memory it is first run once
    more (`again`: it was) with what the allocator held free. Raises what the device raised when it is lost.
    """
    if not rows:
        return []
    try:
        return list(zip(rows, run(rows), strict=True))
    except Exception as error:  # whatever a kernel may raise is the fault of one row until proven otherwise
        faults.batches += 1
        if device_lost(error):
            raise
        memory = lacks_memory(error)
        if not memory:
            log.exception("a batch of %d failed", len(rows))
        # The traceback holds the frames that hold the batch's tensors.
        fault = error.with_traceback(None)
        fault.__context__ = None
    if memory and not again:
        faults.took(EMPTY_CACHE, len(rows))
        torch.cuda.empty_cache()  # does nothing where there is no CUDA
        return narrowed(rows, run, faults, again=True)
    if len(rows) == 1:
        return [(rows[0], fault)]
    if memory:
        faults.took(HALVE, len(rows))
    half = len(rows) // 2
    return narrowed(rows[:half], run, faults) + narrowed(rows[half:], run, faults)


def lacks_memory(error: Exception) -> bool:
    """Whether it only was too much at once."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "ALLOC_FAILED" in text


def device_lost(error: Exception) -> bool:
    """Whether a CUDA error stands for the device, not for what was asked of it: every later call fails as well.

    torch names such errors `AcceleratorError` since 2.8; before that only their text tells. Lack of memory is none.
    """
    if lacks_memory(error):
        return False
    return isinstance(error, getattr(torch, "AcceleratorError", ())) or "CUDA error" in str(error)
