"""Asks a worker for its load. What answers at a pod's address need not be a worker, so it is trusted with nothing."""

from __future__ import annotations

import aiohttp

from cosyvoice_contract import PATH_LOAD

MAX_REPORT_BYTES = 64 * 1024


def load_session(concurrency: int) -> aiohttp.ClientSession:
    """A session for `read_load`, with so many requests at once."""
    # A connection per reading: one kept open would meet the worker's own keep-alive limit and look like silence.
    connector = aiohttp.TCPConnector(limit=concurrency, force_close=True)
    # No proxy: a pod's address is asked, and nothing else.
    return aiohttp.ClientSession(connector=connector, trust_env=False)


async def read_load(session: aiohttp.ClientSession, ip: str, port: int, timeout: float) -> bytes:  # noqa: ASYNC109
    """The body of `GET /load`; timeout: seconds.

    Raises TimeoutError, aiohttp.ClientError (ClientResponseError for any status but 200), and ValueError for more
    than MAX_REPORT_BYTES.
    """
    host = f"[{ip}]" if ":" in ip else ip
    limit = aiohttp.ClientTimeout(total=timeout)
    async with session.get(f"http://{host}:{port}{PATH_LOAD}", timeout=limit, allow_redirects=False) as response:
        if response.status != 200:
            raise aiohttp.ClientResponseError(
                response.request_info, response.history, status=response.status, message=response.reason or ""
            )
        body = b""
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MAX_REPORT_BYTES:
                raise ValueError(f"more than {MAX_REPORT_BYTES} bytes")
        return body
