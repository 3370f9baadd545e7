"""What Kubernetes' HPA controller decides, as a pure model with a clock of its own.

Follows pkg/controller/podautoscaler of Kubernetes 1.34 for metrics of type Object or External with AverageValue:
`horizontal.go` (behaviour) and `replica_calculator.go` (formula). tests/controlplane/test_autoscaling_model.py compares
it with the real controller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

TOLERANCE = 0.1
"""--horizontal-pod-autoscaler-tolerance: no change while the ratio of load to target is within 10% of one."""
SYNC_SECONDS = 15.0
"""--horizontal-pod-autoscaler-sync-period."""


@dataclass(frozen=True, slots=True)
class Policy:
    """At most this change within `period` seconds."""

    kind: Literal["Pods", "Percent"]
    value: int
    period: float


@dataclass(frozen=True, slots=True)
class Rules:
    """One direction of `behavior`."""

    window: float
    """stabilizationWindowSeconds."""
    policies: Sequence[Policy]
    select: Literal["Max", "Min"] = "Max"


DEFAULT_UP = Rules(0, (Policy("Percent", 100, 15), Policy("Pods", 4, 15)))
DEFAULT_DOWN = Rules(300, (Policy("Percent", 100, 15),))
"""What the API server fills in where a manifest says nothing."""


def rules(manifest: Mapping[str, Any]) -> Rules:
    """Read one direction of `spec.behavior` of an autoscaling/v2 HorizontalPodAutoscaler."""
    return Rules(
        manifest["stabilizationWindowSeconds"],
        tuple(Policy(item["type"], item["value"], item["periodSeconds"]) for item in manifest["policies"]),
        manifest.get("selectPolicy", "Max"),
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """One reading: the sum over the pool, and the target for one worker. `total` None is an error, not a number."""

    total: float | None
    target: float


@dataclass
class Autoscaler:
    """The controller's memory for one HPA."""

    minimum: int
    maximum: int
    up: Rules = DEFAULT_UP
    down: Rules = DEFAULT_DOWN
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, now: float, replicas: int, metrics: Sequence[Metric]) -> int:
        """One pass: the number of replicas to ask for, `replicas` where nothing is to change."""
        wanted = proposal(replicas, metrics)
        if wanted is None:
            return replicas
        wanted = self._stabilized(now, replicas, wanted)
        wanted = self._limited(now, replicas, wanted)
        if wanted != replicas:
            self._changes.append((now, wanted - replicas))
        return wanted

    def _stabilized(self, now: float, replicas: int, wanted: int) -> int:
        """No higher than the lowest of the up window, no lower than the highest of the down window."""
        longest = max(self.up.window, self.down.window)
        self._recommended = [(at, number) for at, number in self._recommended if at > now - longest]
        lowest = min([wanted, *(number for at, number in self._recommended if at > now - self.up.window)])
        highest = max([wanted, *(number for at, number in self._recommended if at > now - self.down.window)])
        self._recommended.append((now, wanted))
        return min(max(replicas, lowest), highest)

    def _limited(self, now: float, replicas: int, wanted: int) -> int:
        """Within minimum and maximum, and no faster than the policies allow."""
        if wanted > replicas:
            limit = max(replicas, self._limit(now, replicas, self.up, +1))
            return min(wanted, self.maximum, limit)
        if wanted < replicas:
            limit = min(replicas, self._limit(now, replicas, self.down, -1))
            return max(wanted, self.minimum, limit)
        return replicas

    def _limit(self, now: float, replicas: int, direction: Rules, sign: Literal[1, -1]) -> int:
        limits = []
        for policy in direction.policies:
            start = replicas - sum(change for at, change in self._changes if at > now - policy.period)
            if policy.kind == "Pods":
                limits.append(start + sign * policy.value)
            else:
                limits.append(_rounded(sign)(start * (1 + sign * policy.value / 100)))
        widest = max if (sign > 0) == (direction.select == "Max") else min
        return widest(limits)


def proposal(replicas: int, metrics: Sequence[Metric]) -> int | None:
    """The largest number that a metric asks for; None when the controller would leave all as it is.

    That is so when no metric is a number, and when one is none while the others would scale down.
    """
    asked = [_asked(replicas, metric.total, metric.target) for metric in metrics if metric.total is not None]
    if not asked or (len(asked) < len(metrics) and max(asked) < replicas):
        return None
    return max(asked)


def _asked(replicas: int, total: float, target: float) -> int:
    if replicas and abs(total / (target * replicas) - 1) <= TOLERANCE:
        return replicas
    return math.ceil(total / target)


def _rounded(sign: int) -> Callable[[float], int]:
    return math.ceil if sign > 0 else int
