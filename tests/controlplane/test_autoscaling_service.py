"""From a CosyVoiceService to the right number of workers: operator, metrics API, the real HPA controller."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cosyvoice_operator.cluster.api_server import ApiServer
from tests.controlplane.metrics_harness import Fleet, eventually, installation
from tests.controlplane.operator_harness import Namespace, OperatorProcess, service

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

    async def has_workers(self, ready: int) -> None:
        async def reached() -> bool:
            return len(self.fleet.pods) == ready and bool(self.pool()["workers"]["ready"] == ready)

        await eventually(reached, what=lambda: f"{ready} workers, but {self.pool()}")


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
