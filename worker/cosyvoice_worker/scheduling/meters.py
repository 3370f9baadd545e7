"""Demand and capacity of this worker, in audio seconds per second (docs/architecture.md, "A stream, capacity, demand").

Pure arithmetic on times that the caller passes in (seconds of one monotonic clock).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass

DEMAND_SECONDS = 30.0
"""Demand is averaged over that long, and a backlog is wanted gone within it."""
WINDOW_SECONDS = 10.0
"""Length of a window in which capacity is measured."""
SATURATED = 0.95
"""Share of a window in which the engine must have been busy and pressed for its rate to count as capacity."""
BUSY = 0.9
"""Share of a window in which the engine must have been busy for a rate above capacity to count."""
SMOOTHING = 0.3
"""Weight of a new window that counts."""


@dataclass(slots=True)
class Asked:
    """One request's share of demand; `seconds` is corrected as more becomes known."""

    at: float
    seconds: float


class DemandMeter:
    def __init__(self) -> None:
        self._accepted: deque[Asked] = deque()
        self._refused: OrderedDict[Hashable, Asked] = OrderedDict()
        """By retry key, or by something unique where there is none; the oldest first."""

    def accepted(self, now: float, seconds: float, retry_key: str) -> Asked:
        """A request that is taken. Its earlier refusals (same key, not empty) no longer count: it asks once."""
        self._forget(now)
        if retry_key:
            self._refused.pop(retry_key, None)
        asked = Asked(now, seconds)
        self._accepted.append(asked)
        return asked

    def refused(self, now: float, seconds: float, retry_key: str) -> None:
        """A refused request asks for as much as an accepted one; its retries (same key, not empty) ask for no more."""
        self._forget(now)
        key = retry_key or object()
        self._refused.pop(key, None)
        self._refused[key] = Asked(now, seconds)

    def demand(self, now: float, backlog_seconds: float) -> float:
        """What was asked for in the last 30 s, accepted or refused, plus the backlog, over 30 s. Idle is exactly 0."""
        self._forget(now)
        asked = sum(a.seconds for a in self._accepted) + sum(a.seconds for a in self._refused.values())
        return (asked + backlog_seconds) / DEMAND_SECONDS

    def _forget(self, now: float) -> None:
        since = now - DEMAND_SECONDS
        while self._accepted and self._accepted[0].at <= since:
            self._accepted.popleft()
        while self._refused and next(iter(self._refused.values())).at <= since:
            self._refused.popitem(last=False)


class CapacityMeter:
    """What this worker sustains. Seeded, then calibrated at start-up, then corrected by saturated windows.

    One stream can keep a device busy without using what a batch would give, so being busy is not enough: a window
    counts as saturated only when work also waited or the batch was full. Another busy window can only raise it. Both
    count smoothly: audio is credited when it is handed out, so a window may hold what the one before it computed.
    """

    def __init__(self, seed: float, now: float) -> None:
        self.value = seed if seed > 0 else 1.0
        self.measured = False
        self._start = now
        self._busy = self._pressed = self._audio = 0.0

    def calibrate(self, rate: float) -> None:
        """The rate of the start-up batch, > 0."""
        self.value = rate
        self.measured = True

    def step(self, now: float, busy_seconds: float, audio_seconds: float, pressed: bool) -> None:
        """One step of the engine that ended `now`; `pressed`: work waited for its turn or the batch was full."""
        self._busy += busy_seconds
        self._audio += audio_seconds
        if pressed:
            self._pressed += busy_seconds
        elapsed = now - self._start
        if elapsed < WINDOW_SECONDS:
            return
        rate = self._audio / elapsed
        saturated = self._pressed >= SATURATED * elapsed and rate > 0
        if saturated or (self._busy >= BUSY * elapsed and rate > self.value):
            self.value += SMOOTHING * (rate - self.value)
            self.measured = True
        self._start = now
        self._busy = self._pressed = self._audio = 0.0


class SpeechRate:
    """Audio seconds per text token, learnt from what was spoken, to tell a request's length before it is made."""

    _FIRST = 0.28
    """English in Qwen's vocabulary: about 3.5 text tokens a second. Stands until the first request is spoken."""
    _LEAST_WEIGHT = 0.05

    def __init__(self) -> None:
        self._seconds_per_token = self._FIRST
        self._learnt = 0

    def estimate(self, text_tokens: int) -> float:
        return text_tokens * self._seconds_per_token

    def learn(self, text_tokens: int, seconds: float) -> None:
        self._learnt += 1
        weight = max(self._LEAST_WEIGHT, 1 / self._learnt)
        self._seconds_per_token += weight * (seconds / text_tokens - self._seconds_per_token)
