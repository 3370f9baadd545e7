"""The HTTP application: routes, and what holds for every one of them."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosyvoice_worker.api import (
    choice_of_voice,
    dictation,
    errors,
    listings,
    native,
    origins,
    playground,
    probes,
    speech,
    voices,
)
from cosyvoice_worker.api.authentication import Authentication
from cosyvoice_worker.api.errors import ApiError
from cosyvoice_worker.api.fetching import Fetcher
from cosyvoice_worker.api.metrics import Metrics
from cosyvoice_worker.engine.requests import Refused
from cosyvoice_worker.lifecycle import Worker

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 10 << 20
"""Of any request: 30 s of a recording as 48 kHz stereo wav are 7.7 MB in base64."""
MAX_BODIES_BYTES = 256 << 20
"""Of all requests that are here at once: hundreds of recordings of usual length, any number of texts."""


def create_app(worker: Worker) -> FastAPI:
    """The application of one worker; it answers before the worker is ready."""
    app = FastAPI(
        title="cosyvoice-worker",
        description="CosyVoice behind OpenAI's speech API",
        redirect_slashes=False,
        docs_url=None,  # both pages would load their scripts from elsewhere
        redoc_url=None,
    )
    app.state.worker = worker
    app.state.sessions = dictation.Sessions()
    app.state.recordings = asyncio.Semaphore(choice_of_voice.RECORDINGS_AT_ONCE)
    addresses = worker.settings.ref_audio_urls
    app.state.fetcher = None if addresses == "none" else Fetcher(addresses)
    app.state.metrics = Metrics(
        load=worker.load_report,
        gpu=worker.gpu_reading,
        model_name=worker.settings.served_name,
        ready=lambda: worker.ready,
        reloads=worker.reloads.counts,
        engine=worker.engine_counters,
    )
    worker.on_ready = app.state.metrics.load_seconds.set
    errors.install(app)
    for router in (
        speech.router,
        dictation.router,
        native.router,
        voices.router,
        listings.router,
        probes.router,
        playground.router,
    ):
        app.include_router(router)
    app.add_middleware(_BodyLimit)
    if worker.api_keys is not None:
        app.add_middleware(Authentication, keys=worker.api_keys, metrics=app.state.metrics)
    origins.open_to(app, worker.settings.cors_origins)  # asks before it sends a key, and reads a 401
    app.add_middleware(_RequestHeaders)
    _forget_422(app)
    return app


def _forget_422(app: FastAPI) -> None:
    """FastAPI documents a 422 wherever a path has a parameter; none is ever sent."""
    document = app.openapi()
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document.get("components", {}).get("schemas", {}).pop(name, None)


class _RequestHeaders:
    """A request id, the client's or a new one, on the way in and out, whatever fails; and every connection carries one
    request.

    Clients keep pools of connections: kept alive, they would pin old workers for ever and never find new ones.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", given) else f"req_{uuid.uuid4().hex}"
        scope.setdefault("state", {}).update(request_id=request_id, api_key="")

        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["connection"] = "close"
                headers["x-request-id"] = request_id
            elif message["type"] in ("websocket.accept", "websocket.http.response.start"):
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, with_headers)
        except Exception as error:
            if started or scope["type"] == "websocket":
                raise
            log.error("request failed", exc_info=error, extra={"path": scope["path"], "request_id": request_id})
            answer = ApiError(500, "the worker failed on this request; its log has the cause")
            await answer.response()(scope, receive, with_headers)


class _BodyLimit:
    """413 for a body that is too large, told by its length or counted while it arrives; 429 when all together are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0
        """Bytes of the bodies of all requests that are not yet answered to the end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            await _too_large().response()(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            self._held += size
            if received > MAX_BODY_BYTES:
                raise _too_large()
            if size and self._held > MAX_BODIES_BYTES:
                raise Refused("QueueFull", 1.0)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held -= received


def _too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes; send less", code="request_too_large")
