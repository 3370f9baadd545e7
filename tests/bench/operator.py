"""`python -m tests.bench.operator`: what the operator costs, on a real control plane.

Writes build/bench/operator.json: `converge_ratio` (time until N services are converged over the time in which a bare
client applies the same objects with the same concurrency), `requests_per_service`, `requests_after_convergence`,
`rss_mib`, `change_p50_s`, `change_p99_s` (from the change of one service to its applied Deployment, others existing).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from cosyvoice_operator.api.service import CosyVoiceService
from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.cluster.kinds import COSYVOICE_SERVICE, DEPLOYMENT, kind_of
from cosyvoice_operator.desired.children import children
from cosyvoice_operator.observed.pools import SETTLING_SECONDS
from cosyvoice_operator.plan import child_name, plan
from cosyvoice_operator.runtime.operator import WORKERS
from tests.cluster import binaries
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.controlplane.operator_harness import OperatorProcess, install, service

ROOT = Path(__file__).parents[2]
APPLY = "application/apply-patch+yaml"
Object = dict[str, Any]


async def each(items: list[Any], work: Any) -> None:
    """As many at once as the operator works on."""
    slots = asyncio.Semaphore(WORKERS)

    async def one(item: Any) -> None:
        async with slots:
            await work(item)

    await asyncio.gather(*(one(item) for item in items))


async def create_services(server: ApiServer, namespace: str, count: int) -> None:
    async def create(number: int) -> None:
        await server.request("POST", COSYVOICE_SERVICE.collection(namespace), body=service(f"s{number}"))

    await each(list(range(count)), create)


async def bare(server: ApiServer, namespace: str, count: int) -> float:
    """Seconds in which a client that knows what it wants applies the children of `count` services."""
    settings = Settings()
    wanted = []
    for number in range(count):
        manifest = service(f"s{number}")
        manifest["metadata"]["namespace"] = namespace
        wanted += children(plan(CosyVoiceService.parse(manifest), settings))

    async def apply(manifest: Object) -> None:
        path = kind_of(manifest).path(namespace, manifest["metadata"]["name"])
        query = {"fieldManager": "bare", "force": "false"}
        await server.request("PATCH", path, query=query, body=manifest, content_type=APPLY)

    started = time.monotonic()
    await each(wanted, apply)
    return time.monotonic() - started


async def until_converged(server: ApiServer, namespace: str, count: int) -> float:
    """Returns the moment at which every service has a status of its generation."""
    while True:
        items = (await server.request("GET", COSYVOICE_SERVICE.collection(namespace)))["items"]
        told = [item for item in items if item.get("status", {}).get("observedGeneration") == 1]
        if len(told) == count:
            return time.monotonic()
        await asyncio.sleep(0.2)


async def changes(server: ApiServer, namespace: str, samples: int) -> list[float]:
    """Seconds from the change of one service to its applied Deployment, one service after the other."""
    taken = []
    for number in range(samples):
        name = f"s{number}"
        path = COSYVOICE_SERVICE.path(namespace, name)
        body = {"spec": {"drain": {"timeoutSeconds": 7}}}
        started = time.monotonic()
        await server.request("PATCH", path, body=body, content_type="application/merge-patch+json")
        while True:
            deployment = await server.request("GET", DEPLOYMENT.path(namespace, child_name(name, "cpu")))
            if deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 22:
                break
            await asyncio.sleep(0.005)
        taken.append(time.monotonic() - started)
    return taken


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def measure(plane: ControlPlane, count: int, more: int, rest: float) -> Object:
    operator = OperatorProcess(plane)
    async with await ApiServer.connect(str(plane.kubeconfig)) as server:
        for namespace in ("bare", "bench", "more"):
            plane.run_kubectl("create", "namespace", namespace)
        bare_seconds = await bare(server, "bare", count)
        plane.run_kubectl("delete", "namespace", "bare", "--timeout=600s")
        operator.start()
        before = len(operator.requests())
        started = time.monotonic()
        await create_services(server, "bench", count)
        created = time.monotonic() - started
        converged = await until_converged(server, "bench", count) - started
        await asyncio.sleep(20)
        writes = [sent for sent in operator.requests()[before:] if "/events" not in sent]
        await create_services(server, "more", more)
        if more:
            await until_converged(server, "more", more)
        await asyncio.sleep(SETTLING_SECONDS + 15)  # then pods without a node are news, once
        at_rest = len(operator.requests())
        await asyncio.sleep(rest)
        after = operator.requests()[at_rest:]
        taken = sorted(await changes(server, "bench", min(100, count)))
        figures = {
            "services": count + more,
            "bare_s": round(bare_seconds, 1),
            "created_s": round(created, 1),
            "converged_s": round(converged, 1),
            "converge_ratio": round(converged / bare_seconds, 2),
            "requests_per_service": round(len(writes) / count, 2),
            "requests_after_convergence": len(after),
            "rss_mib": round(rss_mib(operator.pid), 1),
            "change_p50_s": round(statistics.median(taken), 3),
            "change_p99_s": round(taken[int(len(taken) * 0.99) - 1], 3),
        }
        operator.stop()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=500, help="converged against the clock")
    parser.add_argument("--more", type=int, default=1500, help="that exist besides, for memory and single changes")
    parser.add_argument("--rest", type=float, default=300, help="seconds without a change")
    chosen = parser.parse_args()
    binaries.build([*binaries.CONTROL_PLANE, "helm"])
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as plane:
        install(plane)
        figures = asyncio.run(measure(plane, chosen.services, chosen.more, chosen.rest))
    path = ROOT / "build" / "bench" / "operator.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
