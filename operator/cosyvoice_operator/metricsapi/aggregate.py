"""The rule that turns the readings of a pool's workers into one number, or into an honest refusal to give one.

Pure: what a worker reported and when comes in, the metric's value comes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True)
class Reading:
    """What one worker reported at one moment."""

    taken_at: float
    """When the answer came, seconds since the epoch."""
    values: Mapping[str, float | None]
    """Metric name -> value, 1.0 = 100%; None where the worker cannot measure it (GPU utilisation without a GPU)."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that counts: its container has started and its pod is not terminating. `reading` is its last answer."""

    name: str
    reading: Reading | None


@dataclass(frozen=True, slots=True)
class Pool:
    """What the cluster says about one pool's Deployment."""

    namespace: str
    name: str
    wanted: int
    """`spec.replicas` of the Deployment."""
    targets: Mapping[str, float]
    """Metric name -> the autoscaler's target per worker, 1.0 = 100%."""
    workers: Sequence[Worker]


@dataclass(frozen=True, slots=True)
class Value:
    """The sum of a metric over a pool's workers."""

    milli: int
    """In thousandths, so that it is exact as a Kubernetes quantity."""
    taken_at: float
    """Of the oldest reading in the sum, seconds since the epoch."""


class MetricUnavailable(Exception):
    """There is no honest number. The message is what the HPA shows in its condition `ScalingActive`."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE) -> None:
        super().__init__(message)
        self.status = status


def pool_value(pool: Pool, metric: str, *, now: float, max_age: float) -> Value:
    """Sum `metric` over the workers of `pool` that count.

    A worker that is silent (no reading, or none younger than `max_age` seconds) is counted as exactly at its target:
    that moves an autoscaler neither up nor down. Raises MetricUnavailable when more than half are silent, when no
    worker counts although some are wanted, and when a worker says that it cannot measure this.
    """
    if not pool.workers:
        if pool.wanted == 0:
            return Value(0, now)
        raise MetricUnavailable(f"none of the {pool.wanted} workers of {pool.name} has started yet")
    fresh: list[Reading] = []
    silent: list[str] = []
    for worker in pool.workers:
        if worker.reading is not None and now - worker.reading.taken_at <= max_age:
            fresh.append(worker.reading)
            if worker.reading.values[metric] is None:
                raise MetricUnavailable(
                    f"worker {worker.name} of {pool.name} cannot measure {metric}: it has no GPU; "
                    "scale this pool on GPULoad",
                    HTTPStatus.NOT_FOUND,
                )
        else:
            silent.append(worker.name)
    if 2 * len(silent) > len(pool.workers):
        raise MetricUnavailable(
            f"{len(silent)} of {len(pool.workers)} workers of {pool.name} did not answer within the last "
            f"{max_age:g} s: {_some(silent)}"
        )
    if silent and metric not in pool.targets:
        raise MetricUnavailable(
            f"{_some(silent)} of {pool.name} did not answer within the last {max_age:g} s, and the Deployment names no "
            f"target for {metric} at which to count a silent worker"
        )
    total = math.fsum(value for reading in fresh if (value := reading.values[metric]) is not None)
    if silent:
        total += len(silent) * pool.targets[metric]
    return Value(round(1000 * total), min(reading.taken_at for reading in fresh))


def _some(names: Sequence[str], most: int = 3) -> str:
    """Name a few: a message in a condition must stay short whatever the size of the pool, and not change meanwhile."""
    listed = sorted(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
