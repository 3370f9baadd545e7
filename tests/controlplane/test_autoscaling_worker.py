"""Real worker processes, with the built-in voice on the CPU, under the real HPA controller."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from cosyvoice_contract import PATH_LOAD, WORKER_PORT
from cosyvoice_operator.cluster.api_server import ApiServer
from tests.cluster.control_plane import ControlPlane
from tests.controlplane.metrics_harness import Fleet, autoscaler, eventually, installation, pool_deployment

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
POOL = "narrator-cpu"
LISTENERS = 6
SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody minds at all."


@dataclass
class Workers(Fleet):
    """Runs a worker process for every pod, and counts it as started when it has loaded and warmed up."""

    logs: Path = Path()
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    async def serve(self, name: str, ip: str) -> Callable[[], Awaitable[None]]:
        process = self._spawn(name, ip)
        self.processes[name], self.addresses[name] = process, ip

        async def loaded() -> bool:
            assert process.poll() is None, (self.logs / f"{name}.log").read_text()
            return await reading(ip) is not None

        await eventually(loaded, seconds=240, what=lambda: (self.logs / f"{name}.log").read_text()[-2000:])

        async def stop() -> None:
            process.kill()
            await asyncio.to_thread(process.wait)
            del self.processes[name], self.addresses[name]

        return stop

    def _spawn(self, name: str, ip: str) -> subprocess.Popen[bytes]:
        flags = {
            "model-builtin": "DemoEnglish",
            "builtin-models-dir": ROOT / "models",
            "default-prompt-dir": ROOT / "models" / "prompts",
            "device": "cpu",
            "card": "CPU",
            "listen-host": ip,
            "drain-seconds": 1,
        }
        with (self.logs / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "cosyvoice_worker", *(f"--{flag}={value}" for flag, value in flags.items())],
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'worker'}:{ROOT / 'contract'}", "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            process.send_signal(number)


async def reading(ip: str) -> Any:
    """The load report of one worker; None while it gives none."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2)) as session,
            session.get(f"http://{ip}:{WORKER_PORT}{PATH_LOAD}") as answer,
        ):
            return await answer.json() if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError):
        return None


async def listen(workers: Workers, number: int) -> None:
    """One listener who always wants more, from one worker or another."""
    async with aiohttp.ClientSession() as session:
        while True:
            addresses = sorted(workers.addresses.values())
            url = f"http://{addresses[number % len(addresses)]}:{WORKER_PORT}/v1/audio/speech"
            body = {"model": "DemoEnglish", "voice": "alloy", "input": SENTENCE, "response_format": "pcm"}
            try:
                async with session.post(url, json=body) as answer:
                    await answer.read()
                    refused = answer.status != 200
            except aiohttp.ClientError:
                refused = True
            if refused:
                await asyncio.sleep(1)


@pytest.fixture
async def workers(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[Workers]:
    with installation(control_plane, namespace, tmp_path) as installed:
        await installed.serving("--scrape-interval=2", "--scrape-timeout=2")
        async with (
            await ApiServer.connect(str(control_plane.kubeconfig)) as api,
            Workers(api, namespace, logs=tmp_path).run() as made,
        ):
            scaled = autoscaler(namespace)
            scaled["spec"]["maxReplicas"] = 2
            objects = yaml.safe_dump_all([pool_deployment(namespace), scaled])
            control_plane.run_kubectl("apply", "-f", "-", stdin=objects)
            assert isinstance(made, Workers)
            yield made


async def test_a_pool_of_real_workers_grows_waits_while_they_hang_and_shrinks(workers: Workers) -> None:
    base = f"/apis/autoscaling/v2/namespaces/{workers.namespace}/horizontalpodautoscalers/{POOL}"

    async def status() -> Any:
        return (await workers.api.request("GET", base)).get("status") or {}

    async def active() -> str:
        conditions = {item["type"]: item["status"] for item in (await status()).get("conditions") or ()}
        return conditions.get("ScalingActive", "")

    async def is_active() -> bool:
        return await active() == "True"

    async def is_waiting() -> bool:
        return await active() == "False"

    async def workers_are(count: int) -> bool:
        return len(workers.started) == count and (await status()).get("desiredReplicas") == count

    await eventually(is_active, seconds=240)
    assert await workers_are(1)

    listeners = [asyncio.create_task(listen(workers, number)) for number in range(LISTENERS)]
    await eventually(lambda: workers_are(2), seconds=240)
    for task in listeners:
        task.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)

    workers.signal(signal.SIGSTOP)
    await eventually(is_waiting, seconds=60)
    assert await workers_are(2)
    workers.signal(signal.SIGCONT)
    await eventually(is_active, seconds=60)

    async def one_is_left() -> bool:
        return len(workers.processes) == 1

    await eventually(one_is_left, seconds=120)
