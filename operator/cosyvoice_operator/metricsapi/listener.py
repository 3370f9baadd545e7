"""HTTPS on one port whose certificate and trusted client CA can change while it serves."""

from __future__ import annotations

import ssl

from aiohttp import web


class Listener:
    """`serve` starts it, and again with a new TLS context: the new socket is open before the old one closes."""

    def __init__(self, app: web.Application, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._runner = web.AppRunner(app, access_log=None)
        self._site: web.TCPSite | None = None
        self._context: ssl.SSLContext | None = None
        app.on_response_prepare.append(self._close_outdated)

    async def serve(self, context: ssl.SSLContext) -> None:
        if self._runner.server is None:
            await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=context, reuse_port=True)
        await site.start()
        old, self._site, self._context = self._site, site, context
        if old is not None:
            await old.stop()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _close_outdated(self, request: web.Request, response: web.StreamResponse) -> None:
        """A connection that was made under an earlier context ends with its next answer, so that old trust ends too."""
        if request.transport and request.transport.get_extra_info("sslcontext") is not self._context:
            response.force_close()
