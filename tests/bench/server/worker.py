"""The worker under load: a process of its own, as in a container, and what it says of itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[3]


class Worker:
    def __init__(self, folder: Path, flags: list[str]) -> None:
        """`folder` takes its log and the switch of its faults."""
        self._switch = folder / "faults"
        self.log = folder / "worker.log"
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("COSYVOICE_")}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.bench.server.faulty_worker",
                    "--device=cpu",
                    f"--listen-port={port}",
                    *flags,
                ],
                cwd=ROOT,
                env=clean | {"PYTHONPATH": "worker:contract:.", "BENCH_FAULTS": str(self._switch)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self, seconds: float = 300) -> None:
        ends = time.monotonic() + seconds
        while not self._answers("/readyz"):
            if self._process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"the worker did not become ready:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.2)

    def _answers(self, path: str) -> bool:
        try:
            return httpx.get(self.base + path, timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def live(self) -> bool:
        return self._process.poll() is None and self._answers("/healthz")

    def faults(self, *, on: bool) -> None:
        if on:
            self._switch.touch()
        else:
            self._switch.unlink(missing_ok=True)

    def load(self) -> dict[str, float]:
        report: dict[str, float] = httpx.get(self.base + "/load", timeout=30).json()
        return report

    def metrics(self) -> dict[str, float]:
        """Every sample by its name with its labels."""
        lines = httpx.get(self.base + "/metrics", timeout=30).text.splitlines()
        pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    def wait_until_running(self, count: int) -> None:
        while self.load()["running"] < count:
            time.sleep(0.05)

    def settle(self, seconds: float = 60) -> bool:
        """Wait until it holds nothing; False if it does not come to that."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            report = self.load()
            if report["running"] == report["queued"] == report["gpu_memory"] == 0:
                return True
            time.sleep(0.2)
        return False

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def terminate(self) -> None:
        """As Kubernetes ends it."""
        self._process.send_signal(signal.SIGTERM)

    def exit_status(self, seconds: float = 120) -> int | None:
        """None where it does not end by itself; then it is killed."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
