"""401 for whoever brings no key, before anything of the request is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cosyvoice_contract import PATH_LIVE, PATH_LOAD, PATH_METRICS, PATH_READY
from cosyvoice_worker.api.errors import ApiError
from cosyvoice_worker.api.metrics import Metrics
from cosyvoice_worker.api_keys import ApiKeys

log = logging.getLogger(__name__)

OPEN: Final = frozenset({PATH_LIVE, PATH_READY, PATH_LOAD, PATH_METRICS, "/"})
"""What the cluster asks, and the page that asks its reader for a key. Every other path, whatever it is, needs one."""

SUBPROTOCOL: Final = "speech"
"""What a browser's WebSocket offers beside its key, and what is agreed on: the key is never sent back."""
_KEY_PROTOCOL: Final = "openai-insecure-api-key."
"""OpenAI's way to give a key where no header can be set: a subprotocol that begins so."""


class Authentication:
    """The name of the key is `scope["state"]["api_key"]`; empty where none is needed."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, metrics: Metrics) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        key = _presented(Headers(scope=scope), scope.get("subprotocols", ()))
        name = self._keys.name_of(key) if key else None
        if name is not None:
            self._metrics.key_requests.labels(name).inc()
            scope["state"]["api_key"] = name
            await self._app(scope, receive, send)
            return
        self._metrics.unauthorized.inc()
        log.info("unauthorized", extra={"request_id": scope["state"]["request_id"], "path": scope["path"][:256]})
        await _unauthorized(bool(key)).response()(scope, receive, send)


def _presented(headers: Headers, subprotocols: Sequence[str]) -> str:
    """The key that came with the request; empty when none did."""
    scheme, _, credentials = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    offered = (protocol for protocol in subprotocols if protocol.startswith(_KEY_PROTOCOL))
    return next(offered, "").removeprefix(_KEY_PROTOCOL)


def _unauthorized(given: bool) -> ApiError:
    """As OpenAI answers; what was given is not repeated."""
    return ApiError(
        401,
        "the API key is not known here; ask for one who runs this service"
        if given
        else "an API key is needed; send it in the header Authorization: Bearer <key>",
        code="invalid_api_key",
        headers={"WWW-Authenticate": 'Bearer error="invalid_token"' if given else "Bearer"},
    )
