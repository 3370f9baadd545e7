"""Manifests and observed objects, as short as a test can say them."""

from __future__ import annotations

import copy
from typing import Any

from cosyvoice_contract import LABEL_POOL
from cosyvoice_operator.api.service import CosyVoiceService
from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.plan import Plan, plan

Manifest = dict[str, Any]

T4_POOL: Manifest = {"name": "t4", "card": "T4", "concurrency": {"min": 50, "max": 400}}


def manifest(name: str = "narrator", **spec: Any) -> Manifest:
    """A CosyVoiceService with a T4 pool and a model on a volume, and with `spec` laid over that."""
    source = {"persistentVolumeClaim": {"claimName": "models", "path": "CosyVoice2-0.5B"}}
    return {
        "apiVersion": "tts.cosyvoice.io/v1alpha1",
        "kind": "CosyVoiceService",
        "metadata": {"name": name, "namespace": "speech", "uid": "uid-1", "generation": 1},
        "spec": copy.deepcopy({"model": {"name": "CosyVoice2-0.5B", "source": source}, "pools": [T4_POOL], **spec}),
    }


def planned(name: str = "narrator", settings: Settings | None = None, **spec: Any) -> Plan:
    return plan(CosyVoiceService.parse(manifest(name, **spec)), settings or Settings())


def pool(**fields: Any) -> Manifest:
    return {**T4_POOL, **fields}


def deployment(replicas: int = 1, ready: int = 0, conditions: tuple[Manifest, ...] = ()) -> Manifest:
    """As the store keeps it."""
    return {
        "metadata": {"name": "narrator-t4-eb324", "generation": 1},
        "spec": {"replicas": replicas},
        "status": {"readyReplicas": ready, "conditions": list(conditions)},
    }


def pod(
    *,
    pool: str = "t4",
    uid: str = "pod",
    container: Manifest | None = None,
    unschedulable: Manifest | None = None,
    going: bool = False,
    phase: str = "Running",
) -> Manifest:
    """A worker pod; `container` is its container's status, `unschedulable` completes its PodScheduled condition."""
    metadata: Manifest = {"name": "pod", "uid": uid, "labels": {LABEL_POOL: pool}}
    if going:
        metadata["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    status: Manifest = {"phase": phase, "conditions": [], "containerStatuses": []}
    if container is not None:
        status["containerStatuses"] = [{"name": "worker", "ready": False, "state": {}, "lastState": {}, **container}]
    if unschedulable is not None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", **unschedulable}
        status["conditions"] = [condition]
    return {"metadata": metadata, "status": status}
