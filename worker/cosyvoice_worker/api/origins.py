"""Pages of other sites: what a browser lets them send unasked, they may not make the worker do.

Which sites may is one setting, `cors_origins`: it opens the CORS headers, and forms and WebSockets, which know no CORS.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

from cosyvoice_worker.api.errors import ApiError

_READABLE = ("X-Sample-Rate", "X-Audio-Channels", "X-Request-Id", "Retry-After")
"""Headers of answers that a page may see, beside those that it always may."""


def refuse_foreign_page(headers: Headers, allowed: Collection[str]) -> None:
    """403 for a form or a WebSocket from a page of a site that is neither this one nor in `allowed`; whoever is no
    browser names no origin."""
    origin = headers.get("origin")
    if origin is None or "*" in allowed or origin.lower() in allowed:
        return
    if urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        raise ApiError(
            403,
            f"Origin {origin[:80]!r} is another site; COSYVOICE_CORS_ORIGINS does not name it",
            code="foreign_origin",
        )


def open_to(app: FastAPI, allowed: Collection[str]) -> None:
    """Let pages of these sites read answers and ask beforehand. Cookies are never taken: who they are, keys say."""
    if allowed:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allowed),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # OpenAI's client sends a dozen of its own
            expose_headers=_READABLE,
        )
