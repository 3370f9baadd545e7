"""The real HPA controller scales on what the metrics API says of worker-like servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cosyvoice_operator.cluster.api_server import ApiServer
from tests.cluster.control_plane import ControlPlane
from tests.controlplane.metrics_harness import (
    Fleet,
    Installation,
    Replica,
    autoscaler,
    eventually,
    installation,
    pool_deployment,
)

pytestmark = pytest.mark.controlplane
POOL = "narrator-cpu"
HPA_ROUNDS = 6.0
"""Seconds in which an HPA that wants to act has acted: three of its rounds here."""


class Pool:
    """One pool under an HPA, and its fleet."""

    def __init__(self, api: ApiServer, fleet: Fleet, replica: Replica, installed: Installation) -> None:
        self.api = api
        self.fleet = fleet
        self.replica = replica
        self.installed = installed
        self._path = f"/apis/autoscaling/v2/namespaces/{fleet.namespace}/horizontalpodautoscalers/{POOL}"

    async def replicas(self) -> int:
        path = f"/apis/apps/v1/namespaces/{self.fleet.namespace}/deployments/{POOL}/scale"
        wanted: int = (await self.api.request("GET", path))["spec"].get("replicas", 0)
        return wanted

    async def scaling_active(self) -> tuple[str, str, str]:
        """Status, reason and message of the HPA's condition."""
        status = (await self.api.request("GET", self._path)).get("status") or {}
        for condition in status.get("conditions") or ():
            if condition["type"] == "ScalingActive":
                return condition["status"], condition.get("reason", ""), condition.get("message", "")
        return "", "", ""

    async def scales_to(self, wanted: int, seconds: float = 30) -> list[int]:
        """Wait for that many replicas; return the numbers seen on the way."""
        seen: list[int] = []

        async def reached() -> bool:
            now = await self.replicas()
            if not seen or seen[-1] != now:
                seen.append(now)
            return now == wanted and len(self.fleet.pods) == wanted

        await eventually(reached, seconds=seconds, what=lambda: f"{wanted} replicas, seen {seen}")
        return seen

    async def stays_at(self, wanted: int, seconds: float = HPA_ROUNDS) -> None:
        for _ in range(round(seconds / 0.25)):
            assert await self.replicas() == wanted
            await asyncio.sleep(0.25)

    async def becomes_active(self, expected: str, seconds: float = 30) -> tuple[str, str]:
        seen: list[Any] = []

        async def reached() -> bool:
            seen[:] = await self.scaling_active()
            return bool(seen[0] == expected)

        await eventually(reached, seconds=seconds, what=lambda: f"ScalingActive={expected}, but {seen}")
        return seen[1], seen[2]


@pytest.fixture
async def pool(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[Pool]:
    with installation(control_plane, namespace, tmp_path) as installed:
        replica = await installed.serving()
        async with (
            await ApiServer.connect(str(control_plane.kubeconfig)) as api,
            Fleet(api, namespace, demand=0.4).run() as fleet,
        ):
            control_plane.run_kubectl(
                "apply", "-f", "-", stdin=yaml.safe_dump_all([pool_deployment(namespace), autoscaler(namespace)])
            )
            made = Pool(api, fleet, replica, installed)
            await made.scales_to(1)
            await made.becomes_active("True")
            yield made


async def test_load_scales_a_pool_up_in_one_step_and_down_when_it_leaves(pool: Pool) -> None:
    def warnings() -> str:
        about = f"involvedObject.name={POOL},type=Warning"
        kubectl = pool.installed.plane.run_kubectl
        return kubectl("-n", pool.fleet.namespace, "get", "events", "--field-selector", about, "-o", "yaml")

    before = warnings()
    pool.fleet.demand = 4.0
    assert await pool.scales_to(5) == [1, 5]
    await pool.stays_at(5)
    assert warnings() == before  # the four that came at once never left the autoscaler without a number
    pool.fleet.demand = 0.0
    await pool.scales_to(1)


async def test_workers_that_still_load_change_nothing(pool: Pool) -> None:
    pool.fleet.loading = True
    pool.fleet.demand = 2.0
    await pool.scales_to(3)
    await pool.stays_at(3)
    assert (await pool.scaling_active())[0] == "True"


async def test_a_silent_worker_changes_nothing(pool: Pool) -> None:
    pool.fleet.demand = 2.4
    await pool.scales_to(3)
    pool.fleet.silent = {pool.fleet.pods[0]}
    pool.fleet.demand = 1.6  # what the two others carried before
    await asyncio.sleep(4)  # until its last reading is stale
    await pool.stays_at(3)
    assert (await pool.scaling_active())[0] == "True"


async def test_when_all_are_silent_the_autoscaler_waits_and_says_why(pool: Pool) -> None:
    pool.fleet.demand = 2.4
    await pool.scales_to(3)
    pool.fleet.silent = set(pool.fleet.pods)
    reason, _ = await pool.becomes_active("False")
    assert reason == "FailedGetObjectMetric"

    async def says_why() -> bool:  # they do not fall silent in the same instant
        return f"3 of 3 workers of {POOL} did not answer within the last" in (await pool.scaling_active())[2]

    await eventually(says_why)
    await pool.stays_at(3)
    pool.fleet.silent = set()
    await pool.becomes_active("True")


async def test_no_worker_started_is_no_zero(pool: Pool) -> None:
    pool.fleet.demand = 2.4
    await pool.scales_to(3)
    for name in pool.fleet.pods:
        await pool.fleet.set_started(name, False)
    _, message = await pool.becomes_active("False")
    assert f"none of the 3 workers of {POOL} has started yet" in message
    await pool.stays_at(3)


async def test_the_autoscaler_waits_while_the_metrics_api_is_away_and_goes_on_when_it_is_back(pool: Pool) -> None:
    pool.fleet.demand = 2.4
    await pool.scales_to(3)
    pool.replica.kill()
    await pool.becomes_active("False")
    pool.fleet.demand = 0.0
    await pool.stays_at(3)
    await pool.installed.start().ready()
    await pool.becomes_active("True")
    await pool.scales_to(1)


async def test_a_restart_of_the_api_server_is_survived(pool: Pool) -> None:
    pool.fleet.demand = 1.6
    await pool.scales_to(2)
    pool.installed.plane.restart_apiserver()
    await pool.becomes_active("True", seconds=60)
    pool.fleet.demand = 3.2
    await pool.scales_to(4, seconds=60)
    assert pool.replica.process.poll() is None


async def test_gpu_utilization_of_workers_without_a_gpu_is_an_error_that_says_so(pool: Pool) -> None:
    namespace = pool.fleet.namespace
    other = autoscaler(namespace, metric="gpu_utilization")
    pool.installed.plane.run_kubectl("apply", "-f", "-", stdin=json.dumps(other))
    _, message = await pool.becomes_active("False")
    assert "cannot measure gpu_utilization: it has no GPU" in message
    await pool.stays_at(1)
