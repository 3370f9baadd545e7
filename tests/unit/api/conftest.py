"""A real server with the real engine on a tiny random model, on a real port; faults and pauses are scripted into it."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from cosyvoice_worker import live_files, startup
from cosyvoice_worker.engine.requests import Refused, SynthesisFailed, SynthesisRequest, Usage
from cosyvoice_worker.lifecycle import Engine
from cosyvoice_worker.scheduling import service as scheduling
from cosyvoice_worker.scheduling.stream import SpeechStream
from cosyvoice_worker.server import Server, serve
from cosyvoice_worker.settings import Settings

ROOT = Path(__file__).parents[3]
TINY = ROOT / "tests" / "golden" / "data" / "tiny-cosyvoice2"
RATE = 24000


def eventually(holds: Callable[[], object], seconds: float = 20.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "did not come to hold"
        time.sleep(0.01)


@dataclass
class Running:
    server: Server
    thread: threading.Thread
    engines: list[Engine]
    voices_file: Path = Path("/nonexistent")
    voice_store: Path = Path("/nonexistent")
    load_when_ready: dict[str, object] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.base + path, timeout=10)

    def speak(self, **body: object) -> httpx.Response:
        return httpx.post(self.base + "/v1/audio/speech", json={"input": "hello there", **body}, timeout=60)

    def outcomes(self, outcome: str) -> float:
        """How many requests ended so."""
        return self.metric(f'cosyvoice_requests_total{{outcome="{outcome}"}}')

    def metric(self, sample: str) -> float:
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample + " "))

    def end(self) -> None:
        self.server.terminate()
        self.thread.join(20)
        assert not self.thread.is_alive()


def start(load: Callable[[Settings], Awaitable[Engine]] = startup.load_engine, **settings: object) -> Running:
    """Serve the tiny model; returns once the port is open."""
    listening = threading.Event()
    servers: list[Server] = []
    engines: list[Engine] = []

    async def loaded(settings: Settings) -> Engine:
        engines.append(await load(settings))
        return engines[0]

    def told(server: Server) -> None:
        servers.append(server)
        listening.set()

    said = {"model_name": "Tiny", "model_dir": TINY, "device": "cpu", "drain_seconds": 20} | settings
    thread = threading.Thread(
        target=lambda: asyncio.run(serve(Settings(listen_host="127.0.0.1", listen_port=0, **said), loaded, told)),
        daemon=True,
    )
    thread.start()
    assert listening.wait(20)
    return Running(servers[0], thread, engines)


def ask(server: Running, **body: object) -> socket.socket:
    """A client that has asked for speech and has not read the answer."""
    payload = json.dumps({"input": "hello", "response_format": "pcm", **body}).encode()
    sock = socket.create_connection(("127.0.0.1", server.server.port))
    sock.sendall(
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(payload)}\r\n\r\n".encode()
        + payload
    )
    return sock


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests that leave it running, and the voices as they were."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("mounted")
    file, store = folder / "voices.json", folder / "store"
    store.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_files, "POLL_SECONDS", 0.05)
        patch.setattr(scheduling, "CALIBRATION_SECONDS", 0.0)
        server = start(max_running=4, max_queued=2, voices_file=file, voice_store_dir=store, max_uploaded_voices=3)
        eventually(lambda: server.get("/readyz").status_code == 200, seconds=120)
        server.voices_file, server.voice_store = file, store
        server.load_when_ready = server.get("/load").json()
        yield server
        server.end()


@pytest.fixture
def server(running: Running) -> Running:
    eventually(lambda: running.engine.service.reading().running == 0)
    return running


@dataclass
class Script:
    """What the engine does instead of speaking: audio, pauses and faults at known times, through its own streams."""

    pieces: int = 5
    piece_seconds: float = 0.2
    pause: float = 0.0
    """Seconds before each piece."""
    fail_after: int | None = None
    """Pieces after which the request fails."""
    refusal: Refused | None = None
    requests: list[SynthesisRequest] = field(default_factory=list)
    cancelled_at: list[float] = field(default_factory=list)
    running: int = 0

    async def submit(self, request: SynthesisRequest) -> SpeechStream:
        if self.refusal:
            raise self.refusal
        self.requests.append(request)
        speaking: asyncio.Task[None]

        def cancel() -> None:
            if not speaking.done():
                self.cancelled_at.append(time.monotonic())
                speaking.cancel()

        stream = SpeechStream(cancel)
        speaking = asyncio.create_task(self._speak(stream))
        return stream

    async def _speak(self, stream: SpeechStream) -> None:
        self.running += 1
        try:
            time_axis = np.arange(int(self.piece_seconds * RATE)) / RATE
            for index in range(self.pieces):
                await asyncio.sleep(self.pause)
                if index == self.fail_after:
                    stream.put(SynthesisFailed("the device went away"))
                    return
                stream.put((0.4 * np.sin(2 * np.pi * 300 * time_axis)).astype(np.float32))
            stream.put(Usage(text_tokens=3, speech_tokens=25, audio_seconds=self.pieces * self.piece_seconds))
        finally:
            self.running -= 1


@pytest.fixture
def script(server: Running, monkeypatch: pytest.MonkeyPatch) -> Script:
    """The shared server's engine follows this script for the length of a test."""
    script = Script()
    monkeypatch.setattr(server.engine.service, "submit", script.submit)
    return script


def worker_environment(**environment: str) -> dict[str, str]:
    """For a worker in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COSYVOICE_")}
    return clean | {"PYTHONPATH": f"{ROOT / 'worker'}:{ROOT / 'contract'}", "OMP_NUM_THREADS": "1"} | environment
