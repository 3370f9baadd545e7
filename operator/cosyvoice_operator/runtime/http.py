"""`/healthz`, `/readyz` and `/metrics` of the operator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest


@asynccontextmanager
async def serve(port: int, alive: Callable[[], bool], ready: Callable[[], bool]) -> AsyncIterator[int]:
    """Serve on all interfaces while the context lasts; yields the port, which is drawn where 0 is asked for."""

    def probe(check: Callable[[], bool]) -> Callable[[web.Request], object]:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(text="ok") if check() else web.Response(status=503, text="failed")

        return answer

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", probe(alive))  # type: ignore[arg-type]
    app.router.add_get("/readyz", probe(ready))  # type: ignore[arg-type]
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, port=port)
        await site.start()
        # Drawn ports differ between IPv4, whose addresses are pairs, and IPv6; say the former where there is one.
        yield min(runner.addresses, key=len)[1]
    finally:
        await runner.cleanup()
