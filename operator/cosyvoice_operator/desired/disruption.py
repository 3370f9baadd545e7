"""The PodDisruptionBudget of a pool."""

from __future__ import annotations

from cosyvoice_operator.desired.metadata import Manifest, metadata, pool_selector
from cosyvoice_operator.plan import Plan, PoolPlan


def budget(plan: Plan, pool: PoolPlan) -> Manifest:
    """Never by `minAvailable`, which on a pool of one would block every drain of its node."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(plan, pool.child_name, pool),
        "spec": {
            "maxUnavailable": plan.service.spec.disruption.max_unavailable,
            "selector": {"matchLabels": pool_selector(plan, pool)},
            # A worker that never became ready must not keep a node from being emptied.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
