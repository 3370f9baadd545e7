"""From a step of the load to the real HPA controller's decision, at its default period of 15 s and ours of 5 s.

Real: kube-apiserver, kube-controller-manager, the metrics API process, HTTP between it and the workers. Played: the
workers' readings, which here follow the load at once.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path

import yaml

from cosyvoice_operator.cluster.api_server import ApiServer
from tests.bench.autoscaling.hpa import SYNC_SECONDS
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.controlplane.metrics_harness import Fleet, autoscaler, eventually, installation, pool_deployment

NAMESPACE = "bench"


def measure(steps: int, seed: int = 0) -> list[float]:
    """Seconds from each of `steps` load steps, at random moments, to the new number of replicas."""
    with tempfile.TemporaryDirectory() as root, control_plane(Path(root), hpa_sync_seconds=SYNC_SECONDS) as plane:
        plane.run_kubectl("create", "namespace", NAMESPACE)
        return asyncio.run(_measure(plane, Path(root), steps, random.Random(seed)))


async def _measure(plane: ControlPlane, root: Path, steps: int, draw: random.Random) -> list[float]:
    objects = [pool_deployment(NAMESPACE), autoscaler(NAMESPACE)]
    (name,) = {item["metadata"]["name"] for item in objects}
    scale = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}/scale"
    with installation(plane, NAMESPACE, root) as installed:
        await installed.serving("--scrape-interval=5", "--scrape-timeout=2")
        async with (
            await ApiServer.connect(str(plane.kubeconfig)) as api,
            Fleet(api, NAMESPACE, demand=0.4).run() as fleet,
        ):
            plane.run_kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

            async def has(replicas: int) -> bool:
                return (await api.request("GET", scale))["spec"].get("replicas") == replicas and len(
                    fleet.pods
                ) == replicas

            waits = []
            for step in range(steps):
                fleet.demand = 0.4
                await eventually(lambda: has(1), seconds=120)
                await asyncio.sleep(draw.uniform(5, 5 + SYNC_SECONDS))
                started = time.monotonic()
                fleet.demand = 3.0
                await eventually(lambda: has(4), seconds=120)
                waits.append(time.monotonic() - started)
                print(f"step {step + 1} of {steps}: {waits[-1]:.1f} s", flush=True)
            return waits
