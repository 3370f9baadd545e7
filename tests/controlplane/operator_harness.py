"""Runs the real operator process against a real control plane, and asks that control plane what came of it."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cosyvoice_contract import LoadReport
from tests.cluster.binaries import BIN
from tests.cluster.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "cosyvoice-operator"
OPERATOR_NAMESPACE = "cosyvoice-system"
USER = f"system:serviceaccount:{OPERATOR_NAMESPACE}:cosyvoice"
INSTALLED = ("crd", "rbac", "lease")
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{OPERATOR_NAMESPACE}")

Object = dict[str, Any]
T = TypeVar("T")


def install(plane: ControlPlane) -> None:
    """The chart's CRD, RBAC and Lease, for a release `cosyvoice`."""
    plane.run_kubectl("create", "namespace", OPERATOR_NAMESPACE)
    template = [BIN / "helm", "template", "cosyvoice", CHART, "--namespace", OPERATOR_NAMESPACE]
    rendered = subprocess.run(
        [*template, "--kube-version=1.34.0", *(f"--show-only=templates/{name}.yaml" for name in INSTALLED)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    plane.run_kubectl("apply", "-f", "-", stdin=rendered)
    plane.run_kubectl("wait", "--for=condition=Established", "crd/cosyvoiceservices.tts.cosyvoice.io", "--timeout=30s")


class OperatorProcess:
    """`python -m cosyvoice_operator run`, authenticated as the chart's service account."""

    def __init__(self, plane: ControlPlane, identity: str = "operator-0") -> None:
        self.plane = plane
        self.identity = identity
        self.log = plane.root / f"{identity}.log"
        self._kubeconfig = plane.kubeconfig_for(USER, GROUPS)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self, timeout: float = 60, settings: Object | None = None) -> None:
        """Return once it has listed everything; `settings` as the chart writes them. One that does not is ended."""
        self.launch(settings)
        try:
            self.has_listed(timeout)
        except BaseException:
            self.kill()
            raise

    def launch(self, settings: Object | None = None) -> None:
        """Start it and leave it to itself."""
        python_path = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "contract"))
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "cosyvoice_operator", "run", "--port=0"]
            if settings is not None:
                path = self.plane.root / f"{self.identity}-settings.yaml"
                path.write_text(yaml.safe_dump(settings))
                command.append(f"--settings={path}")
            self._process = subprocess.Popen(
                [*command, f"--own-namespace={OPERATOR_NAMESPACE}", f"--identity={self.identity}"],
                env=os.environ | {"KUBECONFIG": str(self._kubeconfig), "PYTHONPATH": python_path},
                stdout=log,
                stderr=log,
            )

    def has_listed(self, timeout: float) -> None:
        """Raises AssertionError with its log if it has not listed everything by then."""

        def listed() -> None:
            assert self._process is not None
            text = self.log.read_text()[self._log_start :]
            if self._process.poll() is not None:
                raise RuntimeError(f"the operator ended:\n{text}")
            assert "all kinds are listed" in text, text
            port = re.search(r"probes and metrics on port (\d+)", text)
            assert port is not None, text
            self.port = int(port[1])

        eventually(listed, timeout)

    def stop(self) -> int:
        """End it as a kubelet would; returns its exit status."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it as a node's death would: without a word."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def leads(self) -> None:
        """Raises AssertionError unless this replica is the one that works."""
        assert "cosyvoice_operator_leads 1.0" in self.get("/metrics")[1], f"{self.identity} does not lead"

    def wait(self, timeout: float) -> int:
        """Exit status of a process that is expected to end by itself. Raises subprocess.TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(timeout)

    def requests(self) -> list[str]:
        """Every request so far but watches and the beats of its own Lease, as `verb URI`."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.plane.audit_events(user=USER)
            if event["verb"] != "watch" and "/leases" not in event["requestURI"]
        ]

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of one of its own HTTP endpoints."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except urllib.error.URLError as error:
            raise RuntimeError(f"{self.identity} does not answer:\n{self.log.read_text()[-4000:]}") from error


class Namespace:
    """One namespace as a user sees it."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane = plane
        self.name = name

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        return self.plane.run_kubectl("--namespace", self.name, *arguments, stdin=stdin, check=check)

    def apply(self, manifest: Object, check: bool = True) -> str:
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest), check=check)

    def get(self, kind: str, name: str) -> Object:
        """Raises AssertionError if there is none."""
        found: Object = json.loads(self.kubectl("get", kind, name, "--output=json", "--show-managed-fields"))
        return found

    def list(self, kind: str, selector: str = "tts.cosyvoice.io/service") -> list[Object]:
        found: list[Object] = json.loads(self.kubectl("get", kind, "--selector", selector, "--output=json"))["items"]
        return found

    def condition(self, service: str, name: str) -> Object:
        conditions = self.get("cosyvoiceservice", service).get("status", {}).get("conditions", [])
        found: list[Object] = [condition for condition in conditions if condition["type"] == name]
        assert found, f"{service} has no condition {name}"
        return found[0]

    def converged(self, service: str) -> Object:
        """Wait until the operator has said something about the newest generation; returns the service."""

        def observed() -> Object:
            found = self.get("cosyvoiceservice", service)
            assert found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"], found
            return found

        return eventually(observed)

    def set_pods(self, status: Object) -> None:
        """Play the kubelet: give every pod of the namespace a status."""
        for pod in self.list("pods"):
            patch = ["patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge"]
            self.kubectl(*patch, "--patch", json.dumps({"status": status}))


READY = {
    "phase": "Running",
    "conditions": [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ],
    "containerStatuses": [
        {"name": "worker", "ready": True, "restartCount": 0, "image": "i", "imageID": "i", "state": {"running": {}}}
    ],
}
"""Status of a pod whose worker is ready."""


@contextlib.contextmanager
def worker_at(address: str, report: LoadReport) -> Iterator[None]:
    """Answers `GET /load` as a worker with that pod address does; every 127.x address is this machine's."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(report).encode()
            self.send_response(200 if self.path == "/load" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((address, 8000), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def service(name: str = "hello", **spec: Any) -> Object:
    """A CosyVoiceService of one to three workers without a GPU, with `spec` laid over that."""
    pools = [{"name": "cpu", "card": "CPU", "workers": {"min": 1, "max": 3}}]
    model = {"name": "DemoEnglish", "source": {"builtIn": {"name": "DemoEnglish"}}}
    return {
        "apiVersion": "tts.cosyvoice.io/v1alpha1",
        "kind": "CosyVoiceService",
        "metadata": {"name": name},
        "spec": {"model": model, "pools": pools, **spec},
    }


def eventually(check: Callable[[], T], timeout: float = 30) -> T:
    """The first answer of `check` that is no AssertionError; its last one when the time is up."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


@contextlib.contextmanager
def quiet(operator: OperatorProcess, home: Namespace, seconds: float = 5) -> Iterator[None]:
    """Fails unless the operator comes to rest about a namespace after the block, then to send nothing for `seconds`."""
    yield

    def requests() -> list[str]:
        return [request for request in operator.requests() if f"/namespaces/{home.name}/" in request]

    def at_rest() -> int:
        before = requests()
        time.sleep(2)
        assert requests()[len(before) :] == []
        return len(before)

    before = eventually(at_rest, timeout=20)
    time.sleep(seconds)
    sent = requests()[before:]
    assert sent == [], sent
