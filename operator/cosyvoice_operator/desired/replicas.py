"""Who sets `spec.replicas` of a pool's Deployment, and to what."""

from __future__ import annotations

from cosyvoice_operator.plan import PoolPlan


def replicas_to_set(pool: PoolPlan, autoscaled: bool, *, new: bool, current: int) -> int | None:
    """The number that the operator has to set, or None: then it keeps its hands off.

    An autoscaled pool gets its minimum at birth, so that it does not start with Kubernetes' default of one, and is the
    autoscaler's from then on. Without an autoscaler the number is whatever somebody made it, within min and max.
    """
    if autoscaled and not new:
        return None
    wanted = pool.min_workers if new else min(max(current, pool.min_workers), pool.max_workers)
    return None if wanted == current else wanted
