"""Writes the deletion cost of a pod: all of a pod that the operator may change (the chart's RBAC and policy)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.kinds import POD
from cosyvoice_operator.cluster.store import DELETION_COST, Store


async def set_deletion_cost(server: ApiServer, store: Store, pod: Mapping[str, Any], cost: str | None) -> None:
    """None removes it. That the pod is gone, or is another by now, is no error. Raises ApiError."""
    metadata = pod["metadata"]
    body = {"metadata": {"uid": metadata["uid"], "annotations": {DELETION_COST: cost}}}
    path = POD.path(metadata["namespace"], metadata["name"])
    try:
        answer = await server.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    except ApiError as error:
        if error.code not in (404, 409):
            raise
        return
    store.put(POD, answer)
