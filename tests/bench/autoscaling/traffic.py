"""A day of listeners: how much audio is asked for, second by second.

Assumed: a daily wave with its low at 04:00 and its high at 16:00 (a tenth of the peak at night), and on it ten bursts a
day (a show ends, a batch of notifications): 20% to 60% more than the wave, rising within ten minutes and gone after 15
to 40. Requests come independently (Poisson). A text gives 8 s of audio in the daytime and 20 s in the evening (articles
instead of dialogue), which is what makes requests per second a poor measure of work.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

DAY = 86_400


@dataclass(frozen=True, slots=True)
class Second:
    """What arrives within one second."""

    requests: int
    audio_seconds: float


def day(peak_streams: float, seed: int) -> Iterator[Second]:
    """One day; `peak_streams` is the top of the daily wave, in audio seconds per second."""
    draw = random.Random(seed)
    bursts = [(draw.uniform(0, DAY), draw.uniform(900, 2400), draw.uniform(0.2, 0.6)) for _ in range(10)]
    for second in range(DAY):
        wave = 0.55 - 0.45 * math.cos(2 * math.pi * (second - 4 * 3600) / DAY)
        streams = peak_streams * wave * (1 + sum(_burst(second, *burst) for burst in bursts))
        length = 8 + 12 * _evening(second)
        requests = _poisson(draw, streams / length)
        yield Second(requests, requests * length)


def _burst(now: float, start: float, duration: float, height: float) -> float:
    if not start <= now < start + duration:
        return 0.0
    return height * min(1.0, (now - start) / 600)


def _evening(second: float) -> float:
    """0 by day, 1 between 19:00 and 23:00, with an hour's slope on both sides."""
    hour = second / 3600
    return max(0.0, min(1.0, hour - 18, 24 - hour))


def _poisson(draw: random.Random, mean: float) -> int:
    """A Poisson number; by the normal approximation where it is good."""
    if mean > 50:
        return max(0, round(draw.gauss(mean, math.sqrt(mean))))
    threshold, count, product = math.exp(-mean), 0, draw.random()
    while product > threshold:
        count += 1
        product *= draw.random()
    return count
