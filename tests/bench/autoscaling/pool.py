"""One pool of workers over a day, second by second, under one autoscaler.

A fluid model: a ready worker generates up to C audio seconds per second; what it cannot generate at once waits, at most
30 s, and beyond that is refused. A request is late when its first audio comes more than a second late because of what
waits before it. A worker that is asked for is paid for at once and ready after its cold start; one that is not wanted
goes at once, those that still load first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.bench.autoscaling.hpa import SYNC_SECONDS, Autoscaler, Metric
from tests.bench.autoscaling.traffic import Second

QUEUE_SECONDS = 30.0
LATE_SECONDS = 1.0
DEMAND_WINDOW = 30
SCRAPE_SECONDS = 5
OSCILLATION_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Card:
    """What one worker does. `alone`: audio seconds per second of a single stream, which has the GPU to itself."""

    name: str
    capacity: float
    alone: float
    cpu_request: float


@dataclass(frozen=True, slots=True)
class Load:
    """What the workers of the pool see: sums over the ready ones."""

    ready: int
    arriving: float
    """Audio seconds per second asked for and accepted, mean over 30 s."""
    refused: float
    waiting: float
    """Audio seconds."""
    generated: float
    """Audio seconds per second, mean over 30 s."""
    requests: float
    """Accepted per second, mean over 30 s."""


Signal = Callable[[Card, Load], Metric]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A day's account."""

    gpu_hours: float
    late_share: float
    """Of all requests, those refused or late."""
    oscillations: int
    """Times a worker was taken away and another asked for within 15 minutes, or the other way round."""
    replicas: Sequence[int]
    """Minute by minute."""


def run(
    day: Iterable[Second], card: Card, autoscaler: Autoscaler, signal: Signal, *, cold_start: float, start: int
) -> Outcome:
    """Live through `day` from `start` ready workers."""
    ready, loading = start, list[float]()
    waiting = 0.0
    history: deque[tuple[float, float, float, float]] = deque(maxlen=DEMAND_WINDOW)
    metric = Metric(None, 1.0)
    gpu_seconds = requests = failed = 0.0
    minutes = list[int]()
    oscillations, last_change, last_sign = 0, -OSCILLATION_SECONDS, 0
    for now, second in enumerate(day):
        ready += sum(1 for at in loading if at <= now)
        loading = [at for at in loading if at > now]
        able = ready * card.capacity
        late = waiting > LATE_SECONDS * able
        waiting += second.audio_seconds
        generated = min(waiting, able)
        waiting -= generated
        refused = max(0.0, waiting - QUEUE_SECONDS * able)
        waiting -= refused
        refused_share = min(1.0, refused / second.audio_seconds) if second.audio_seconds else 0.0
        accepted = 1 - refused_share
        requests += second.requests
        failed += second.requests * (1.0 if late else refused_share)
        history.append((second.audio_seconds * accepted, refused, generated, second.requests * accepted))
        if now % SCRAPE_SECONDS == 0:
            arriving, turned_away, made, served = (sum(column) / len(history) for column in zip(*history, strict=True))
            metric = signal(card, Load(ready, arriving, turned_away, waiting, made, served))
        replicas = ready + len(loading)
        gpu_seconds += replicas
        if now % 60 == 0:
            minutes.append(replicas)
        if now % SYNC_SECONDS == 0:
            change = autoscaler.decide(now, replicas, [metric]) - replicas
            if change:
                sign = 1 if change > 0 else -1
                oscillations += sign != last_sign and now - last_change < OSCILLATION_SECONDS
                last_change, last_sign = now, sign
            if change > 0:
                loading += [now + cold_start] * change
            while change < 0:
                if loading:
                    loading.pop()
                else:
                    ready -= 1
                change += 1
    return Outcome(gpu_seconds / 3600, failed / requests, oscillations, minutes)
