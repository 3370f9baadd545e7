"""The process: an HTTP server that listens from the first moment, a worker behind it, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cosyvoice_worker.api import dictation
from cosyvoice_worker.api.app import create_app
from cosyvoice_worker.lifecycle import Engine, Worker
from cosyvoice_worker.settings import Settings
from cosyvoice_worker.websocket_protocol import bounded_websockets

log = logging.getLogger(__name__)

_FLUSH_SECONDS = 5.0
"""After the drain time: for the last bytes to leave."""


class StartFailed(Exception):
    """The worker cannot serve; the text is the one line that the user needs."""


class Server(uvicorn.Server):
    """uvicorn, but a signal is ours: the port stays open while running streams finish. A second signal ends at once."""

    def __init__(self, config: uvicorn.Config, port: int) -> None:
        super().__init__(config)
        self.port = port
        self.terminated = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def terminate(self) -> None:
        """What SIGTERM does; from any thread."""
        self._loop.call_soon_threadsafe(self.terminated.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.terminated.is_set():
            self.force_exit = self.should_exit = True
        self.terminate()


def _cutting(stall_seconds: float) -> type[HttpToolsProtocol]:
    """A connection that ends although its client reads nothing: closing alone waits for ever for what is not yet sent.

    Once the answer is complete or broken off, the rest must make progress within `stall_seconds`, again and again.
    """

    class Protocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            app = self.app

            async def watched(scope: Scope, receive: Receive, send: Send) -> None:
                try:
                    await app(scope, receive, send)
                finally:
                    watch(transport.get_write_buffer_size() + 1)

            def watch(before: int) -> None:
                unsent = transport.get_write_buffer_size()
                if unsent == before:
                    transport.abort()
                elif unsent:
                    self.loop.call_later(stall_seconds, watch, unsent)

            self.app = watched

    return Protocol


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; empty host: every address, IPv4 and IPv6."""
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=2048, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise StartFailed(
            f"COSYVOICE_LISTEN_PORT={port}: cannot listen on {host or 'any address'}: {error.strerror}"
        ) from None


async def serve(
    settings: Settings,
    load: Callable[[Settings], Awaitable[Engine]],
    listening: Callable[[Server], None] = lambda server: None,
) -> None:
    """Serve until a signal, then drain. Raises `StartFailed` and what `load` raises; `listening` gets the server."""
    worker = Worker(settings, load)
    sock = listen(settings.listen_host, settings.listen_port)
    app = create_app(worker)
    config = uvicorn.Config(
        app,
        http=_cutting(settings.write_stall_seconds),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ws=bounded_websockets(settings.write_stall_seconds),
        ws_max_size=dictation.MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,  # audio does not get smaller by it
    )
    server = Server(config, port=sock.getsockname()[1])
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    listening(server)
    starting = asyncio.create_task(worker.start())
    terminated = asyncio.create_task(server.terminated.wait())
    try:
        await asyncio.wait({serving, starting, terminated}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await asyncio.wait({serving, terminated}, return_when=asyncio.FIRST_COMPLETED)
        await _drain(worker, server, app.state.sessions)
    finally:
        starting.cancel()
        terminated.cancel()
        server.should_exit = True
        await serving
        await asyncio.gather(starting, terminated, return_exceptions=True)
        await worker.stop()
        sock.close()
        log.info("stopped")


async def _drain(worker: Worker, server: Server, sessions: dictation.Sessions) -> None:
    seconds = worker.settings.drain_seconds
    ends = time.monotonic() + seconds
    log.info("draining", extra={"at_most_seconds": seconds})
    if not await worker.drain():
        log.error("streams were cut: they did not end within the drain time", extra={"drain_seconds": seconds})
    await sessions.end(ends - time.monotonic() + _FLUSH_SECONDS)
    server.config.timeout_graceful_shutdown = max(1, int(ends - time.monotonic() + _FLUSH_SECONDS))
