"""Which worker goes first when its pool shrinks. Pure; objects are as `cluster.store` keeps them.

Kubernetes takes away the pod of the lowest deletion cost. That is only kind to the streams that run: that none is cut
is the drain's work. Each mark is a write to a pod, so there is one, and only while the autoscaler wants fewer workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cosyvoice_operator.observed.pools import Object

FIRST: Final = "-100"
"""The cost of the worker that goes first. Others have none, which counts as 0."""


@dataclass(frozen=True)
class Marks:
    """What to change so that the right pod bears the mark."""

    set: Object | None = None
    clear: tuple[Object, ...] = ()


def wants_fewer(autoscaler: Object | None) -> bool:
    """Whether the HPA proposes fewer workers than there are: it says so while its window or its policy holds it back,
    and for the moment in which it acts."""
    if autoscaler is None:
        return False
    status = autoscaler.get("status", {})
    reasons = {item["type"]: item.get("reason") for item in status.get("conditions", ()) if item["status"] == "True"}
    return (
        reasons.get("AbleToScale") == "ScaleDownStabilized"
        or reasons.get("ScalingLimited") == "ScaleDownLimit"
        or status.get("desiredReplicas", 0) < status.get("currentReplicas", 0)
    )


def marks(pods: Iterable[Object], work: Mapping[str, int], *, fewer: bool) -> Marks:
    """`pods` of one pool; `work` is pod uid -> sequences that run and wait there, of pods that said so of late.

    A pod with a cost of somebody else's, e.g. from `podTemplate`, means that the user has an order of his own.
    """
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    marked = [pod for pod in staying if pod.get("deletion_cost") == FIRST]
    known = [pod for pod in staying if pod["metadata"]["uid"] in work]
    if (
        not fewer
        or len(staying) < 2
        or not known
        or any(pod.get("deletion_cost") not in ("", FIRST) for pod in staying)
    ):
        return Marks(clear=tuple(marked))
    # Of equals the one that bears the mark, so that it does not wander.
    emptiest = min(known, key=lambda pod: (work[pod["metadata"]["uid"]], pod not in marked, pod["metadata"]["name"]))
    others = tuple(pod for pod in marked if pod is not emptiest)
    return Marks(None if emptiest in marked else emptiest, others)
