"""Reads a pool out of API objects: pure functions over a Deployment and pods as the API server sends them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from cosyvoice_contract import ANNOTATION_SIGNAL_TARGETS, LABEL_POOL, LABEL_SERVICE, WORKER_CONTAINER
from cosyvoice_operator.metricsapi.aggregate import Pool, Reading, Worker

Object = Mapping[str, Any]
PoolKey = tuple[str, str | None, str | None]
"""Namespace, service and pool."""
_METADATA = ("name", "namespace", "uid", "labels", "deletionTimestamp")


def slim_pod(pod: Object) -> dict[str, Any]:
    """What is read of a pod here: a fifth of its memory."""
    status = pod.get("status") or {}
    return {
        "metadata": {name: pod["metadata"][name] for name in _METADATA if name in pod["metadata"]},
        "status": {
            **{name: status[name] for name in ("phase", "podIP") if name in status},
            "containerStatuses": [
                {"name": container["name"], "started": container.get("started")}
                for container in status.get("containerStatuses") or ()
            ],
        },
    }


def slim_deployment(deployment: Object) -> dict[str, Any]:
    """What is read of a Deployment here: its pod template, the bulk of it, is not."""
    meta, spec = deployment["metadata"], deployment["spec"]
    targets = (meta.get("annotations") or {}).get(ANNOTATION_SIGNAL_TARGETS)
    return {
        "metadata": {
            **{name: meta[name] for name in _METADATA if name in meta},
            "annotations": {} if targets is None else {ANNOTATION_SIGNAL_TARGETS: targets},
        },
        "spec": {"replicas": spec.get("replicas", 1), "selector": spec["selector"]},
    }


def deployment_key(deployment: Object) -> tuple[str, str]:
    """Namespace and name."""
    return deployment["metadata"]["namespace"], deployment["metadata"]["name"]


def pod_key(pod: Object) -> PoolKey:
    """The pool whose labels a pod bears."""
    return _pool_key(pod["metadata"]["namespace"], pod["metadata"].get("labels") or {})


def pods_key(deployment: Object) -> PoolKey:
    """The `pod_key` of the pods that a Deployment selects."""
    return _pool_key(deployment["metadata"]["namespace"], deployment["spec"]["selector"].get("matchLabels") or {})


def _pool_key(namespace: str, labels: Mapping[str, str]) -> PoolKey:
    return namespace, labels.get(LABEL_SERVICE), labels.get(LABEL_POOL)


def read_pool(deployment: Object, pods: Iterable[Object], readings: Mapping[str, Reading]) -> Pool:
    """Put together what is known of the pool behind `deployment`.

    pods: of the Deployment's namespace at least. readings: pod uid -> last reading.
    """
    meta = deployment["metadata"]
    spec = deployment["spec"]
    return Pool(
        namespace=meta["namespace"],
        name=meta["name"],
        wanted=spec.get("replicas", 1),
        targets=signal_targets(meta.get("annotations") or {}),
        workers=[
            Worker(pod["metadata"]["name"], readings.get(pod["metadata"]["uid"]))
            for pod in pods
            if selects(deployment, pod) and counts(pod)
        ],
    )


def selects(deployment: Object, pod: Object) -> bool:
    """Whether the pod belongs to the Deployment. The operator's Deployments select by matchLabels alone."""
    if pod["metadata"]["namespace"] != deployment["metadata"]["namespace"]:
        return False
    wanted = deployment["spec"]["selector"].get("matchLabels") or {}
    labels = pod["metadata"].get("labels") or {}
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())


def counts(pod: Object) -> bool:
    """Whether the pod is a worker whose reading matters: started (its startupProbe passed) and not terminating.

    A pod that loads its model does not count, nor does one that has ended or been evicted. Readiness is not asked: a
    worker that is too busy for its readiness probe is the last one to be forgotten.
    """
    if pod["metadata"].get("deletionTimestamp"):
        return False
    status = pod.get("status") or {}
    if status.get("phase") != "Running" or not status.get("podIP"):
        return False
    return any(
        container["name"] == WORKER_CONTAINER and container.get("started") is True
        for container in status.get("containerStatuses") or ()
    )


def signal_targets(annotations: Mapping[str, str]) -> dict[str, float]:
    """Targets from the annotation, percent to fractions. What does not parse is left out; `pool_value` then says so."""
    try:
        parsed = json.loads(annotations.get(ANNOTATION_SIGNAL_TARGETS, "{}"))
        return {
            str(metric): percent / 100
            for metric, percent in parsed.items()
            if isinstance(percent, int | float) and math.isfinite(percent) and percent > 0
        }
    except (ValueError, AttributeError):
        return {}
