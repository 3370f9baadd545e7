"""The HorizontalPodAutoscaler of a pool."""

from __future__ import annotations

from typing import Any

from cosyvoice_contract import SIGNAL_METRICS
from cosyvoice_operator.api.kubernetes import ScalingRules
from cosyvoice_operator.api.service import Signal
from cosyvoice_operator.desired.metadata import Manifest, metadata
from cosyvoice_operator.plan import Plan, PoolPlan

# Kubernetes' own default adds four pods every 15 s, which overshoots while GPUs and models take minutes to come.
_SCALE_UP: Manifest = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 2, "periodSeconds": 60},
        {"type": "Percent", "value": 100, "periodSeconds": 60},
    ],
}
_SCALE_DOWN: Manifest = {
    "stabilizationWindowSeconds": 300,
    "selectPolicy": "Max",
    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}],
}


def autoscaler(plan: Plan, pool: PoolPlan) -> Manifest:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool.child_name}
    behavior = plan.service.spec.autoscaling.behavior
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(plan, pool.child_name, pool),
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": pool.min_workers,
            "maxReplicas": pool.max_workers,
            "metrics": [_metric(signal, target) for signal in pool.signals],
            "behavior": {
                "scaleUp": _rules(_SCALE_UP, behavior.scale_up),
                "scaleDown": _rules(_SCALE_DOWN, behavior.scale_down),
            },
        },
    }


def _metric(signal: Signal, target: dict[str, Any]) -> Manifest:
    """The metric is the sum over the pool's workers, so the target per worker does not distort while pods load."""
    return {
        "type": "Object",
        "object": {
            "describedObject": target,
            "metric": {"name": SIGNAL_METRICS[signal.type]},
            "target": {"type": "AverageValue", "averageValue": _hundredths(signal.target_percent)},
        },
    }


def _hundredths(percent: int) -> str:
    """As a quantity in the form in which the API server would write it: 80 -> `800m`, 100 -> `1`."""
    return "1" if percent == 100 else f"{percent * 10}m"


def _rules(default: Manifest, given: ScalingRules | None) -> Manifest:
    return default | (given.model_dump(by_alias=True, exclude_none=True) if given else {})
