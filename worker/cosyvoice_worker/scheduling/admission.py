"""Who may come in: pure decisions. Refuse early rather than fail late; what plays goes before what waits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Reason = Literal["QueueFull", "Draining", "MemoryGuard"]

SHORTEST_RETRY, LONGEST_RETRY = 1.0, 60.0
"""Bounds of Retry-After in seconds."""
DUE_SECONDS = 10.0
"""Of one request's audio so much at most is due; the rest can wait until it is nearly played."""
HOLD_SECONDS = 2.0
"""A queued request is held back at most that long for the sake of streams that would stutter."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much the worker takes on."""

    max_running: int
    """Requests that may be worked on at once."""
    max_queued: int
    queue_seconds: float
    """A request waits at most this long for its turn; where the work that is due takes longer, a new one is refused at
    once: it would be taken only to fail late, or to make all stutter."""
    max_unread_bytes: int = 256 << 20
    """Audio that readers may leave with the worker, all together: 46 minutes of 24 kHz float32."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The worker at one moment."""

    running: int
    queued: int
    due_seconds: float
    """Audio seconds accepted, not yet made and due soon: of each request at most `DUE_SECONDS`, as no listener needs
    more in hand and a long text yields to who has less."""
    capacity: float
    """Audio seconds per second."""
    draining: bool = False
    memory_guard: bool = False
    """Device memory is above its guard: new work waits, unless nothing runs."""
    unread_bytes: int = 0
    """Audio made and not yet taken by its readers: slow ones hold memory after their work is done."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason
    retry_after: float


def retry_after(now: Occupancy) -> float:
    """Whole seconds after which the work that is due will be done."""
    work = now.due_seconds / now.capacity
    return float(math.ceil(min(max(work, SHORTEST_RETRY), LONGEST_RETRY)))


def refusal(now: Occupancy, bounds: Bounds) -> Refusal | None:
    """Why a new request is not taken, or None when it is (to run at once or to queue)."""
    if now.draining:
        return Refusal("Draining", SHORTEST_RETRY)
    if now.unread_bytes >= bounds.max_unread_bytes:
        return Refusal("MemoryGuard", retry_after(now))
    taken = now.running + now.queued
    late = taken > 0 and now.due_seconds / now.capacity > bounds.queue_seconds
    if late or taken - bounds.max_running >= bounds.max_queued:
        return Refusal("MemoryGuard" if now.memory_guard else "QueueFull", retry_after(now))
    return None


def may_start(now: Occupancy, bounds: Bounds, *, waited: float, stuttering: bool) -> bool:
    """Whether the first in the queue starts now. `stuttering`: a playing stream is about to run dry."""
    if now.running == 0:
        return True
    if now.running >= bounds.max_running or now.memory_guard:
        return False
    return not stuttering or waited >= HOLD_SECONDS


def expired(bounds: Bounds, *, waited: float) -> bool:
    """Whether a queued request has waited too long to be worth starting."""
    return waited > bounds.queue_seconds
