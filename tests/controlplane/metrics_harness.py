"""An installed metrics API and worker-like servers for control-plane tests.

The metrics API runs as a real process with the rights that the chart gives it. Pods have no kubelet here, so a `Fleet`
plays one: it gives each pod of the operator's an address of the loopback network and serves `/load` there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from cosyvoice_contract import (
    ANNOTATION_SIGNAL_TARGETS,
    LABEL_MANAGED_BY,
    LABEL_POOL,
    LABEL_SERVICE,
    MANAGED_BY,
    PATH_LOAD,
    WORKER_CONTAINER,
    WORKER_PORT,
    LoadReport,
)
from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.mirror import Mirror
from cosyvoice_operator.metricsapi.wire import GROUP, VERSIONS
from tests.cluster.binaries import BIN, KUBERNETES
from tests.cluster.control_plane import ControlPlane, _free_ports

CHART = Path(__file__).parents[2] / "charts" / "cosyvoice-operator"
TEMPLATES = ("templates/metrics-api.yaml", "templates/metrics-api-rbac.yaml")
RELEASE = "cvs"
NAME = f"{RELEASE}-metrics-api"
SCRAPE_SECONDS = 1.0
_addresses = (f"127.{a}.{b}.{c}" for a in range(20, 120) for b in range(1, 250) for c in range(1, 250))


@dataclass
class Replica:
    """One running process of the metrics API."""

    process: subprocess.Popen[bytes]
    port: int
    health_port: int
    log: Path

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=20)

    async def ready(self, seconds: float = 30) -> None:
        async def answers() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return (await self.get("/readyz"))[0] == 200

        await eventually(answers, seconds=seconds, what=lambda: f"metrics API ready:\n{self.log.read_text()}")

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body from the plain health port; status 0 while nothing listens."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.health_port}{path}") as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    async def sample(self, name: str) -> float | None:
        """One unlabelled or fully written sample of /metrics."""
        for line in (await self.get("/metrics"))[1].splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return None


class Installation:
    """The chart's objects for the metrics API in a namespace of its own, and the processes that a kubelet would run."""

    def __init__(self, plane: ControlPlane, namespace: str, root: Path) -> None:
        self.plane = plane
        self.namespace = namespace
        self.root = root
        self.cluster_role = f"{namespace}:{NAME}"
        self.admission_policy = f"{namespace}.{NAME}"
        self.replicas: list[Replica] = []
        (self._port,) = _free_ports(1)
        rendered = [item for item in yaml.safe_load_all(self._render()) if item]
        # kube-apiserver cannot reach a pod here, but it can reach a name; the chart's Service has endpoints instead.
        self._objects = [item for item in rendered if item["kind"] not in ("Service", "PodDisruptionBudget")]
        self._objects.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": NAME, "namespace": namespace},
                "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": self._port}]},
            }
        )

    def apply(self) -> None:
        self.plane.run_kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(self._objects))

    def start(self, *flags: str, port: int | None = None) -> Replica:
        """Start one replica as the chart's service account; `port` for a second one beside it."""
        (health_port,) = _free_ports(1)
        log = self.root / f"metrics-api-{len(self.replicas)}.log"
        arguments = [
            f"--namespace={self.namespace}",
            f"--service={NAME}",
            f"--service-port={self._port}",
            f"--own-address=localhost:{self._port}",  # no cluster DNS here
            f"--deployment={NAME}",
            f"--secret={NAME}-serving",
            f"--cluster-role={self.cluster_role}",
            f"--kubeconfig={self._kubeconfig()}",
            "--host=127.0.0.1",
            f"--port={port or self._port}",
            f"--health-port={health_port}",
            f"--scrape-interval={SCRAPE_SECONDS:g}",
            "--scrape-timeout=0.5",
            *flags,
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "cosyvoice_operator.metricsapi", *arguments],
                stdout=out,
                stderr=out,
                cwd=Path(__file__).parents[2],
                env={"PYTHONPATH": "operator:contract", "PATH": ""},
            )
        replica = Replica(process, port or self._port, health_port, log)
        self.replicas.append(replica)
        return replica

    async def serving(self, *flags: str) -> Replica:
        """Apply, start one replica, and wait until kube-apiserver passes requests on to it."""
        self.apply()
        replica = self.start(*flags)
        await replica.ready()
        for version in VERSIONS:
            name = f"apiservice/{version}.{GROUP}"
            self.plane.run_kubectl("wait", name, "--for=create", "--timeout=20s")
            self.plane.run_kubectl("wait", name, "--for=condition=Available", "--timeout=30s")
        return replica

    def remove_cluster_objects(self) -> None:
        """What `helm uninstall` does to the cluster-scoped objects."""
        names = (self.cluster_role, f"{self.cluster_role}:view")
        self.plane.run_kubectl("delete", "clusterrole,clusterrolebinding", *names, "--ignore-not-found")
        policies = "validatingadmissionpolicy,validatingadmissionpolicybinding"
        self.plane.run_kubectl("delete", policies, self.admission_policy, "--ignore-not-found")
        self.plane.run_kubectl("-n", "kube-system", "delete", "rolebinding", self.cluster_role, "--ignore-not-found")

    def _render(self) -> str:
        shown = [argument for template in TEMPLATES for argument in ("--show-only", template)]
        return subprocess.run(
            [
                BIN / "helm",
                "template",
                RELEASE,
                CHART,
                "--namespace",
                self.namespace,
                "--kube-version",
                KUBERNETES,
                *shown,
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def _kubeconfig(self) -> Path:
        """A kubeconfig with a token of the chart's service account, as a pod would have."""
        token = self.plane.run_kubectl("-n", self.namespace, "create", "token", NAME).strip()
        admin = yaml.safe_load(self.plane.kubeconfig.read_text())
        admin["users"] = [{"name": "admin", "user": {"token": token}}]
        path = self.root / "service-account.yaml"
        path.write_text(yaml.safe_dump(admin))
        return path


@contextlib.contextmanager
def installation(plane: ControlPlane, namespace: str, root: Path) -> Iterator[Installation]:
    made = Installation(plane, namespace, root)
    try:
        yield made
    finally:
        for replica in made.replicas:
            replica.kill()
        made.remove_cluster_objects()
        for version in VERSIONS:
            # Garbage collection takes a moment; the next test must not find them.
            plane.run_kubectl("wait", f"apiservice/{version}.{GROUP}", "--for=delete", "--timeout=30s", check=False)


@dataclass
class Fleet:
    """Plays the kubelet for the operator's pods in one namespace, and is the workers behind them."""

    api: ApiServer
    namespace: str
    demand: float = 0.0
    """Workers' worth of load on the whole pool, spread evenly over those that answer, as a load balancer would."""
    silent: set[str] = field(default_factory=set)
    """Names of pods whose worker hangs."""
    running: dict[str, int] = field(default_factory=dict)
    """Pod -> sequences that run there; 1 where nothing is said."""
    loading: bool = False
    """New pods do not pass their startupProbe."""
    servers: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    """Pod -> what ends its worker."""
    started: set[str] = field(default_factory=set)

    @property
    def pods(self) -> list[str]:
        return sorted(self.servers)

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[Fleet]:
        changed = asyncio.Event()
        mirror = Mirror(
            self.api,
            f"/api/v1/namespaces/{self.namespace}/pods",
            label_selector=f"{LABEL_MANAGED_BY}={MANAGED_BY}",
            on_change=changed.set,
        )
        tasks = [asyncio.create_task(mirror.run()), asyncio.create_task(self._play(mirror, changed))]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stop in self.servers.values():
                await stop()

    async def _play(self, mirror: Mirror, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            pods = {pod["metadata"]["name"]: pod for pod in mirror.objects.values()}
            for name in set(self.servers) - set(pods):
                await self.servers.pop(name)()
            for name, pod in pods.items():
                if name not in self.servers and not pod["metadata"].get("deletionTimestamp"):
                    await self._start(name)

    async def _start(self, name: str) -> None:
        ip = next(_addresses)
        self.servers[name] = await self.serve(name, ip)
        with contextlib.suppress(ApiError):  # gone already
            await self.set_started(name, not self.loading, ip)

    async def serve(self, name: str, ip: str) -> Callable[[], Awaitable[None]]:
        """Start the worker of a pod on port 8000 of `ip`; returns what ends it."""
        app = web.Application()
        app.router.add_get(PATH_LOAD, partial(self._report, name))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, ip, WORKER_PORT).start()
        return runner.cleanup

    async def set_started(self, name: str, started: bool, ip: str | None = None) -> None:
        """What the kubelet reports of a container before and after its startupProbe has passed."""
        (self.started.add if started else self.started.discard)(name)
        status: dict[str, Any] = {
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(started), "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "containerStatuses": [
                {
                    "name": WORKER_CONTAINER,
                    "image": "none",
                    "imageID": "",
                    "restartCount": 0,
                    "ready": started,
                    "started": started,
                    "state": {"running": {}},
                }
            ],
        }
        if ip:
            status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
        await self.api.request(
            "PATCH",
            f"/api/v1/namespaces/{self.namespace}/pods/{name}/status",
            body={"status": status},
            content_type="application/strategic-merge-patch+json",
        )

    async def _report(self, name: str, _: web.Request) -> web.Response:
        if name in self.silent:
            await asyncio.sleep(60)
        answering = len((self.started & set(self.servers)) - self.silent)
        report: LoadReport = {
            "pool_card": "CPU",
            "demand": self.demand * 10 / answering,
            "capacity": 10.0,
            "capacity_from": "Measured",
            "gpu_load": self.demand / answering,
            "gpu_utilization": None,
            "gpu_memory": 0.1,
            "running": self.running.get(name, 1),
            "queued": 0,
            "draining": False,
        }
        return web.json_response(report)


def pool_deployment(namespace: str, name: str = "narrator-cpu", replicas: int = 1) -> dict[str, Any]:
    """A pool's Deployment with what the metrics API reads of it."""
    selector = {LABEL_SERVICE: "narrator", LABEL_POOL: name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_MANAGED_BY: MANAGED_BY, **selector},
            "annotations": {ANNOTATION_SIGNAL_TARGETS: '{"gpu_load": 80, "gpu_memory": 80}'},
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": {LABEL_MANAGED_BY: MANAGED_BY, **selector}},
                "spec": {"containers": [{"name": WORKER_CONTAINER, "image": "none"}]},
            },
        },
    }


def autoscaler(namespace: str, name: str = "narrator-cpu", metric: str = "gpu_load") -> dict[str, Any]:
    """The HPA of that pool, with no patience, so that a test sees it act."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 10,
            "metrics": [
                {
                    "type": "Object",
                    "object": {
                        "describedObject": target,
                        "metric": {"name": metric},
                        "target": {"type": "AverageValue", "averageValue": "800m"},
                    },
                }
            ],
            "behavior": {
                "scaleUp": {"policies": [{"type": "Pods", "value": 10, "periodSeconds": 1}]},
                "scaleDown": {
                    "stabilizationWindowSeconds": 0,
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 1}],
                },
            },
        },
    }


async def eventually(
    true: Callable[[], Awaitable[bool]], *, seconds: float = 30, what: Callable[[], str] = lambda: "it"
) -> None:
    """Wait until `true`; AssertionError with `what` after that many seconds."""
    deadline = time.monotonic() + seconds
    for _ in itertools.count():
        if await true():
            return
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what()}"
        await asyncio.sleep(0.2)


class Client:
    """An HTTPS client of one replica or of kube-apiserver, with a client certificate or without."""

    def __init__(self, server_ca: str, certificate: Path | None = None) -> None:
        self._context = ssl.create_default_context(cadata=server_ca)
        self._context.check_hostname = False  # a replica's certificate is for its Service, and it is reached by address
        if certificate:
            self._context.load_cert_chain(certificate.with_suffix(".crt"), certificate.with_suffix(".key"))

    async def get(self, url: str, **headers: str) -> tuple[int, Any]:
        """Status and parsed JSON. Raises aiohttp.ClientError where TLS fails."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, ssl=self._context, headers={k.replace("_", "-"): v for k, v in headers.items()}) as answer,
        ):
            return answer.status, await answer.json(content_type=None)


def certificate_of(port: int) -> str:
    """PEM of the certificate that is shown on a port of this machine."""
    return ssl.get_server_certificate(("127.0.0.1", port))
