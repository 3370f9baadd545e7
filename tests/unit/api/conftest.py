"""A real server on a real port, in a thread, for the tests of the HTTP API."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from cosyvoice_worker.lifecycle import Engine
from cosyvoice_worker.server import Server, serve
from cosyvoice_worker.settings import Settings
from tests.unit.api.double import SpeechDouble


@dataclass
class Running:
    service: SpeechDouble
    server: Server
    thread: threading.Thread

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.base + path, timeout=10)

    def speak(self, **body: object) -> httpx.Response:
        return httpx.post(self.base + "/v1/audio/speech", json={"input": "hello there", **body}, timeout=20)

    def outcomes(self, outcome: str) -> float:
        """How many requests ended so."""
        return self.metric(f'cosyvoice_requests_total{{outcome="{outcome}"}}')

    def metric(self, sample: str) -> float:
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample + " "))

    def wait_ready(self) -> "Running":
        eventually(lambda: self.get("/readyz").status_code == 200)
        return self

    def end(self) -> None:
        self.server.terminate()
        self.thread.join(10)
        assert not self.thread.is_alive()


def eventually(holds, seconds: float = 10.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "did not come to hold"
        time.sleep(0.01)


def start(service: SpeechDouble, **settings: object) -> Running:
    """Serve `service`; returns once the port is open."""
    listening = threading.Event()
    servers: list[Server] = []

    async def load(_: Settings) -> Engine:
        return service.engine()

    def told(server: Server) -> None:
        servers.append(server)
        listening.set()

    said = {"model_name": "Demo", "model_dir": Path("unused"), "device": "cpu", "drain_seconds": 5} | settings
    thread = threading.Thread(
        target=lambda: asyncio.run(serve(Settings(listen_host="127.0.0.1", listen_port=0, **said), load, told)),
        daemon=True,
    )
    thread.start()
    assert listening.wait(10)
    return Running(service, servers[0], thread)


@pytest.fixture(scope="session")
def running() -> Iterator[Running]:
    """One server for all tests that leave it running."""
    server = start(SpeechDouble()).wait_ready()
    yield server
    server.end()


@pytest.fixture
def server(running: Running) -> Running:
    """The shared server; its engine is as new."""
    running.service.reset()
    return running


@pytest.fixture
def service(server: Running) -> SpeechDouble:
    return server.service
