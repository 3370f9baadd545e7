"""One pass over one service, where no cluster can be brought to the case."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.cluster.apply import Applier
from cosyvoice_operator.cluster.events import Events
from cosyvoice_operator.cluster.kinds import COSYVOICE_SERVICE
from cosyvoice_operator.cluster.store import Store
from cosyvoice_operator.runtime.reconciler import Reconciler
from tests.unit.operator.builders import manifest


async def nobody_goes(*_: object) -> None:
    return None


async def test_a_mistake_of_the_operators_own_is_told_and_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = manifest()
    raw["metadata"]["resourceVersion"] = "1"
    store, server = Store(), ApiServer(Configuration())
    store.put(COSYVOICE_SERVICE, raw)
    sent: list[dict[str, Any]] = []

    async def take(*_: Any, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        sent.append(body)
        return {**raw, "status": body["status"], "metadata": {**raw["metadata"], "resourceVersion": "2"}}

    def fails(_: Any) -> None:
        raise KeyError("containerPort")

    monkeypatch.setattr(server, "request", take)
    monkeypatch.setattr("cosyvoice_operator.runtime.reconciler.children", fails)
    reconciler = Reconciler(
        Settings(), store, Applier(server, store), Events(server, "me"), measured=dict, order_departure=nobody_goes
    )

    assert await reconciler.reconcile(("speech", "narrator")) is None
    (body,) = sent
    accepted = next(condition for condition in body["status"]["conditions"] if condition["type"] == "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InternalError")
    assert accepted["message"].startswith("KeyError: 'containerPort'; this is a mistake in the operator")
