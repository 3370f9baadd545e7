"""Pages of other sites: what a browser lets them send unasked, they may not make the worker do."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers

from cosyvoice_worker.api.errors import ApiError


def refuse_foreign_page(headers: Headers) -> None:
    """403 for a form or a WebSocket from a page that did not come from here; whoever is no browser names no origin."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        raise ApiError(
            403, f"Origin {origin[:80]!r} is another site; only this worker's own page is served", code="foreign_origin"
        )
