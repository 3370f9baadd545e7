"""Names, labels and owner of the children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosyvoice_contract import LABEL_CARD, LABEL_MANAGED_BY, LABEL_POOL, LABEL_SERVICE, MANAGED_BY
from cosyvoice_operator.api.service import API_VERSION, KIND
from cosyvoice_operator.plan import Plan, PoolPlan

Manifest = dict[str, Any]


def metadata(plan: Plan, name: str, pool: PoolPlan | None = None) -> Manifest:
    result: Manifest = {
        "name": name,
        "namespace": plan.service.metadata.namespace,
        "labels": pool_labels(plan, pool) if pool else service_labels(plan),
    }
    if plan.service.metadata.uid:  # a manifest that is not in a cluster has none yet
        result["ownerReferences"] = [_owner(plan)]
    return result


def annotated(given: Mapping[str, str]) -> Manifest:
    """The part of metadata that a user adds to; nothing where there are none."""
    return {"annotations": dict(sorted(given.items()))} if given else {}


def _owner(plan: Plan) -> Manifest:
    """Not blocking: the service may go before its children, whoever deletes it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": plan.service.metadata.name,
        "uid": plan.service.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def service_labels(plan: Plan) -> dict[str, str]:
    return {
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_SERVICE: plan.service.metadata.name,
        "app.kubernetes.io/name": "cosyvoice",
        "app.kubernetes.io/instance": plan.service.metadata.name,
    }


def pool_labels(plan: Plan, pool: PoolPlan) -> dict[str, str]:
    return service_labels(plan) | {LABEL_POOL: pool.pool.name, LABEL_CARD: pool.pool.card}


def pool_selector(plan: Plan, pool: PoolPlan) -> dict[str, str]:
    """A Deployment's selector can never change: only what identifies the pool is in it."""
    return {LABEL_SERVICE: plan.service.metadata.name, LABEL_POOL: pool.pool.name}
