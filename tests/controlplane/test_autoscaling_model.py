"""The simulator's HPA (tests/bench/autoscaling) decides as the real controller does on the same loads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cosyvoice_operator.cluster.api_server import ApiServer
from tests.bench.autoscaling.hpa import Autoscaler, Metric, rules
from tests.cluster.control_plane import ControlPlane
from tests.controlplane.metrics_harness import Fleet, autoscaler, eventually, installation, pool_deployment

pytestmark = pytest.mark.controlplane
BEHAVIOR: dict[str, Any] = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Pods", "value": 2, "periodSeconds": 8},
            {"type": "Percent", "value": 100, "periodSeconds": 8},
        ],
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 10,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 6}],
    },
}
"""What the operator writes by default, with a fifteenth to a thirtieth of its patience."""
TRACE = ((0.0, 0.4), (6.0, 7.0), (34.0, 6.6), (42.0, 0.0))
"""Seconds and load in workers: an idle start, a step to nine workers, one within the tolerance, and nothing."""
END = 90.0


@pytest.fixture
async def fleet(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    with installation(control_plane, namespace, tmp_path) as installed:
        await installed.serving("--scrape-interval=0.5")
        async with (
            await ApiServer.connect(str(control_plane.kubeconfig)) as api,
            Fleet(api, namespace, demand=TRACE[0][1]).run() as made,
        ):
            yield made


async def test_the_model_takes_the_steps_of_the_real_controller(control_plane: ControlPlane, fleet: Fleet) -> None:
    scaled = autoscaler(fleet.namespace)
    scaled["spec"]["behavior"] = BEHAVIOR
    objects = yaml.safe_dump_all([pool_deployment(fleet.namespace), scaled])
    control_plane.run_kubectl("apply", "-f", "-", stdin=objects)
    name = scaled["metadata"]["name"]
    path = f"/apis/apps/v1/namespaces/{fleet.namespace}/deployments/{name}/scale"
    hpa = f"/apis/autoscaling/v2/namespaces/{fleet.namespace}/horizontalpodautoscalers/{name}"

    async def active() -> bool:
        conditions = (await fleet.api.request("GET", hpa)).get("status", {}).get("conditions") or ()
        return any(item["type"] == "ScalingActive" and item["status"] == "True" for item in conditions)

    await eventually(active)
    real = await follow(fleet, path)
    modelled = simulate()
    assert [replicas for _, replicas in real] == [replicas for _, replicas in modelled]
    # A round of two seconds, a scrape, and what the machine takes: at most this much apart at every step.
    late = [at - wanted for (at, _), (wanted, _) in zip(real, modelled, strict=True)]
    assert min(late) > -4
    assert max(late) < 6


async def follow(fleet: Fleet, path: str) -> list[tuple[float, int]]:
    """Put the trace on the fleet; when the real controller changed the scale, and to what."""
    started = time.monotonic()
    todo = list(TRACE)
    seen: list[tuple[float, int]] = []

    async def over() -> bool:
        now = time.monotonic() - started
        while todo and now >= todo[0][0]:
            fleet.demand = todo.pop(0)[1]
        replicas = (await fleet.api.request("GET", path))["spec"]["replicas"]
        if not seen or seen[-1][1] != replicas:
            seen.append((now, replicas))
        return now > END

    await eventually(over, seconds=2 * END)
    return seen[1:]


def simulate() -> list[tuple[float, int]]:
    model = Autoscaler(1, 10, rules(BEHAVIOR["scaleUp"]), rules(BEHAVIOR["scaleDown"]))
    replicas = 1
    seen = []
    for now in range(0, round(END), 2):
        load = next(load for at, load in reversed(TRACE) if at <= now)
        wanted = model.decide(now, replicas, [Metric(load, 0.8)])
        if wanted != replicas:
            replicas = wanted
            seen.append((float(now), wanted))
    return seen
