"""Who may come in: pure decisions. Refuse early rather than fail late; what plays goes before what waits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Reason = Literal["QueueFull", "Draining", "MemoryGuard"]

SHORTEST_RETRY, LONGEST_RETRY = 1.0, 60.0
"""Bounds of Retry-After in seconds."""
HOLD_SECONDS = 2.0
"""A queued request is held back at most that long for the sake of streams that would stutter."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much the worker takes on."""

    max_running: int
    """Requests that may be worked on at once."""
    max_queued: int
    queue_seconds: float
    """A request waits at most this long; one that is expected to wait longer is refused at once."""
    max_unread_bytes: int = 256 << 20
    """Audio that readers may leave with the worker, all together: 46 minutes of 24 kHz float32."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The worker at one moment."""

    running: int
    queued: int
    backlog_seconds: float
    """Audio seconds accepted and not yet made."""
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
    """Whole seconds after which the work that is here will be done."""
    work = now.backlog_seconds / now.capacity
    return float(math.ceil(min(max(work, SHORTEST_RETRY), LONGEST_RETRY)))


def refusal(now: Occupancy, bounds: Bounds) -> Refusal | None:
    """Why a new request is not taken, or None when it is (to run at once or to queue)."""
    work = now.backlog_seconds / now.capacity
    if now.draining:
        return Refusal("Draining", SHORTEST_RETRY)
    if now.unread_bytes >= bounds.max_unread_bytes:
        return Refusal("MemoryGuard", retry_after(now))
    # What was just queued and finds a free place at the next step does not wait.
    waiting = now.running + now.queued - bounds.max_running
    if waiting >= bounds.max_queued or (waiting >= 0 and work > bounds.queue_seconds):
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
