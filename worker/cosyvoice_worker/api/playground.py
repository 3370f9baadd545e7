"""`GET /`: a page to try the worker with. One file, nothing from elsewhere, and the browser is told to keep it so."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

_PAGE = files(__package__).joinpath("playground.html").read_text(encoding="utf-8")


def _hash(element: str) -> str:
    """What the content security policy calls the content of the page's only <script> or <style>."""
    match = re.search(f"<{element}>(.*?)</{element}>", _PAGE, re.DOTALL)
    assert match is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode()}'"


_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; connect-src 'self'; "
        f"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}


@router.get("/")
async def playground() -> HTMLResponse:
    return HTMLResponse(_PAGE, headers=_HEADERS)
