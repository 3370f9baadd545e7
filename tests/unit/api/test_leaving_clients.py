"""A client that leaves, or stops reading, takes no more of the worker's time."""

import asyncio
import socket
import time

import numpy as np
import pytest
import uvicorn

from cosyvoice_worker.api.speech import SpeechResponse
from cosyvoice_worker.audio.encoders import FORMATS
from cosyvoice_worker.engine.requests import Usage
from cosyvoice_worker.scheduling.stream import SpeechStream
from cosyvoice_worker.server import Server, _cutting, listen
from tests.unit.api.conftest import ask, eventually


def test_leaving_frees_the_engine(server):
    before = server.outcomes("cancelled")
    with ask(server, input="One sentence after another, and so on and on. " * 40) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 OK")
        assert server.engine.service.reading().running == 1
    eventually(lambda: server.engine.service.reading().running == 0, seconds=5)
    assert server.outcomes("cancelled") == before + 1


def test_leaving_while_audio_streams_cancels_it_within_100_ms(server, script):
    script.pieces, script.pause = 1000, 0.05
    with ask(server) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 OK")
    left = time.monotonic()
    eventually(lambda: script.cancelled_at)
    assert script.cancelled_at[0] - left < 0.1


def test_leaving_before_the_first_audio_cancels_it_within_100_ms(server, script):
    script.pause = 30
    with ask(server):
        eventually(lambda: script.running)
    left = time.monotonic()
    eventually(lambda: script.cancelled_at)
    assert script.cancelled_at[0] - left < 0.1


class Silent:
    """Takes note of how a request ended."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def audio(self, seconds: float) -> None:
        pass

    def ended(self, outcome: str, error: str = "") -> None:
        self.outcomes.append(outcome)


async def test_a_client_that_reads_nothing_is_cut_after_the_stall_time():
    cancelled = asyncio.Event()
    stream = SpeechStream(cancelled.set)
    stream.put(np.zeros(2400, np.float32))
    account = Silent()
    response = SpeechResponse(stream, FORMATS["pcm"], sse=False, sample_rate=24000, stall_seconds=0.05, account=account)

    async def nothing_is_read(message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    with pytest.raises(Exception, match="stall"):
        await response({"type": "http"}, asyncio.Event().wait, nothing_is_read)
    assert cancelled.is_set()
    assert account.outcomes == ["cancelled"]


async def test_a_client_that_reads_slowly_but_reads_is_not_cut():
    stream = SpeechStream(lambda: None)
    stream.put(np.zeros(24000 * 4, np.float32))
    stream.put(Usage(1, 100, 4.0))
    account = Silent()
    response = SpeechResponse(stream, FORMATS["pcm"], sse=False, sample_rate=24000, stall_seconds=2.0, account=account)
    received = 0

    async def eighty_kilobytes_a_second(message: dict[str, object]) -> None:
        nonlocal received
        size = len(message.get("body", b""))
        await asyncio.sleep(size / 80_000)
        received += size

    await response({"type": "http"}, asyncio.Event().wait, eighty_kilobytes_a_second)
    assert received == 4 * 48_000
    assert account.outcomes == ["completed"]


def test_a_place_is_free_when_the_audio_is_made_not_when_a_slow_client_has_read_it(server):
    with ask(server, input="One sentence after another, and so on and on. " * 4, seed=3) as sock:
        assert sock.recv(1, socket.MSG_PEEK)  # the answer has begun; nothing of it is read
        eventually(lambda: server.engine.service.reading().running == 0)
        received = bytearray()
        while piece := sock.recv(1 << 16):
            received += piece
    assert received.endswith(b"0\r\n\r\n"), "and all of it is there for who reads late"


async def test_a_connection_whose_client_reads_nothing_ends_with_what_was_not_sent():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": bytes(32 << 20)})

    sock = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, http=_cutting(0.2), lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = Server(config, sock.getsockname()[1])
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.to_thread(eventually, lambda: server.server_state.connections)
        await asyncio.to_thread(eventually, lambda: not server.server_state.connections, seconds=5)
    server.should_exit = True
    await serving
    sock.close()
