"""The protocol that a server speaks on a connection that has become a WebSocket."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


def bounded_websockets(stall_seconds: float) -> type[WebSocketsSansIOProtocol]:
    """A WebSocket that ends although its client reads nothing: what is not sent when its session has ended must be
    taken within `stall_seconds`. Closing alone waits for it for ever."""

    class Protocol(WebSocketsSansIOProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            app = self.app

            async def watched(scope: Scope, receive: Receive, send: Send) -> None:
                try:
                    await app(scope, receive, send)
                finally:
                    self.loop.call_later(stall_seconds, self.transport.abort)

            self.app = watched

    return Protocol
