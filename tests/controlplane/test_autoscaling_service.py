"""From a CosyVoiceService to the right number of workers: operator, metrics API, the real HPA controller."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.store import DELETION_COST
from cosyvoice_operator.metricsapi.wire import GROUP
from tests.controlplane.metrics_harness import Fleet, eventually, installation
from tests.controlplane.operator_harness import GROUPS, USER, Namespace, OperatorProcess, service
from tests.controlplane.operator_harness import eventually as eventually_sync

pytestmark = pytest.mark.controlplane
IMPATIENT = {
    "scaleUp": {"policies": [{"type": "Pods", "value": 10, "periodSeconds": 1}]},
    "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 10, "periodSeconds": 1}]},
}


@dataclass
class Home:
    """One service `hello` in a namespace, and what plays its workers."""

    namespace: Namespace
    fleet: Fleet

    def condition(self, name: str) -> Any:
        status = self.namespace.get("cosyvoiceservice", "hello").get("status", {})
        return next((item for item in status.get("conditions", ()) if item["type"] == name), {})

    def pool(self) -> Any:
        return self.namespace.get("cosyvoiceservice", "hello")["status"]["pools"][0]

    async def has(self, condition: str, status: str) -> str:
        """Wait for a condition; returns its message."""

        async def reached() -> bool:
            return bool(self.condition(condition).get("status") == status)

        await eventually(reached, what=lambda: f"{condition}={status}, but {self.condition(condition)}")
        return str(self.condition(condition).get("message", ""))

    async def has_workers(self, ready: int, seconds: float = 30) -> None:
        async def reached() -> bool:
            return len(self.fleet.pods) == ready and bool(self.pool()["workers"]["ready"] == ready)

        await eventually(reached, seconds=seconds, what=lambda: f"{ready} workers, but {self.pool()}")


@pytest.fixture
async def home(operator: OperatorProcess, namespace: str, tmp_path: Path) -> AsyncIterator[Home]:
    plane = operator.plane
    with installation(plane, namespace, tmp_path) as installed:
        await installed.serving()
        async with (
            await ApiServer.connect(str(plane.kubeconfig)) as api,
            Fleet(api, namespace, demand=0.4).run() as fleet,
        ):
            made = Home(Namespace(plane, namespace), fleet)
            made.namespace.apply(
                service(
                    autoscaling={"behavior": IMPATIENT},
                    pools=[{"name": "cpu", "card": "CPU", "workers": {"min": 1, "max": 6}}],
                )
            )
            await made.has("ScalingActive", "True")
            await made.has("Ready", "True")
            yield made


async def test_a_service_grows_with_its_load_and_shrinks_when_it_leaves(home: Home) -> None:
    home.fleet.demand = 3.0  # of one worker each at 80%: four
    await home.has_workers(4)
    home.fleet.demand = 0.0
    await home.has_workers(1)


async def test_the_service_says_why_its_autoscaler_waits(home: Home) -> None:
    home.fleet.demand = 1.6
    await home.has_workers(2)
    home.fleet.silent = set(home.fleet.pods)
    await home.has("ScalingActive", "False")

    async def says_why() -> bool:  # they do not fall silent in the same instant
        message = home.condition("ScalingActive").get("message", "")
        return re.search(r"\b(\d) of \1 workers of hello-cpu-\w+ did not answer", message) is not None

    await eventually(says_why, what=lambda: str(home.condition("ScalingActive")))
    before = home.fleet.pods
    await asyncio.sleep(4)
    assert home.fleet.pods == before


@pytest.mark.timeout(240)
async def test_the_emptiest_worker_is_the_one_that_goes(home: Home) -> None:
    def marked() -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in home.namespace.list("pods")
            if DELETION_COST in pod["metadata"].get("annotations", {})
        ]

    # Long enough for the operator, which asks every half a minute, to see who is empty.
    patient = {**IMPATIENT, "scaleDown": {**IMPATIENT["scaleDown"], "stabilizationWindowSeconds": 60}}
    spec = service(
        autoscaling={"behavior": patient}, pools=[{"name": "cpu", "card": "CPU", "workers": {"min": 1, "max": 6}}]
    )
    home.namespace.apply(spec)
    home.fleet.demand = 2.4
    await home.has_workers(3)
    first, empty, third = home.fleet.pods
    home.fleet.running = {first: 5, empty: 0, third: 3}
    await asyncio.sleep(4)
    assert marked() == []  # nobody wants fewer

    home.fleet.demand = 1.6

    async def only_the_empty_one_is_marked() -> bool:
        return marked() == [empty]

    await eventually(only_the_empty_one_is_marked, seconds=60, what=lambda: f"{empty}, but {marked()}")
    await home.has_workers(2, seconds=90)
    assert home.fleet.pods == sorted([first, third])

    async def nobody_is_marked() -> bool:
        return marked() == []

    await eventually(nobody_is_marked)


async def test_the_operator_may_change_nothing_else_of_a_pod(operator: OperatorProcess, namespace: str) -> None:
    home = Namespace(operator.plane, namespace)
    containers = [{"name": "c", "image": "trusted"}]
    home.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}})
    path, merge = f"/api/v1/namespaces/{namespace}/pods/p", "application/merge-patch+json"
    kubeconfig = operator.plane.kubeconfig_for(USER, GROUPS)
    async with await ApiServer.connect(str(kubeconfig)) as api:
        for patch in (
            {"metadata": {"labels": {"app": "other"}}},
            {"metadata": {"annotations": {"other": "x"}}},
            {"spec": {"activeDeadlineSeconds": 100}},
        ):
            with pytest.raises(ApiError, match="and nothing else"):
                await api.request("PATCH", path, body=patch, content_type=merge)
        cost = {"metadata": {"annotations": {DELETION_COST: "-100"}}}
        assert await api.request("PATCH", path, body=cost, content_type=merge)


def test_a_service_names_the_other_server_that_keeps_its_readings_away(
    operator: OperatorProcess, namespace: str
) -> None:
    home = Namespace(operator.plane, namespace)
    spec = {
        "group": GROUP,
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"namespace": "monitoring", "name": "prometheus-adapter"},
    }
    foreign = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "spec": spec}
    home.apply({**foreign, "metadata": {"name": f"v1beta1.{GROUP}"}})
    try:
        home.apply(service())

        def named() -> None:
            condition = home.condition("hello", "ScalingActive")
            assert condition["reason"] == "MetricsAPIOwnedByOther", condition
            assert "is served by Service monitoring/prometheus-adapter" in condition["message"]
            events = home.kubectl("get", "events", "--field-selector=reason=MetricsAPIOwnedByOther")
            assert "prometheus-adapter" in events

        eventually_sync(named, timeout=60)
    finally:
        operator.plane.run_kubectl("delete", "apiservice", f"v1beta1.{GROUP}")

    def not_named_any_more() -> None:
        assert home.condition("hello", "ScalingActive")["reason"] != "MetricsAPIOwnedByOther"

    eventually_sync(not_named_any_more)
