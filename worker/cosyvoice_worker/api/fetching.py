"""A recording from an address on the internet, where the service allows that: bounded in time, size and redirects."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable
from typing import Final, Literal
from urllib.parse import SplitResult, urljoin, urlsplit

import httpcore2

from cosyvoice_worker.api.public_network import NotPublic, PublicNetwork

Allowed = Literal["https", "http"]
"""`http` allows both."""

MAX_BYTES: Final = 7 << 20
"""What a recording of 10 MiB in base64 comes to."""
MAX_REDIRECTS: Final = 3
SECONDS: Final = 10.0
"""From the first look-up to the last byte, waiting for a turn included."""
_AT_ONCE: Final = 8
_MAX_ADDRESS: Final = 2048
_PORTS: Final = {"https": 443, "http": 80}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class FetchError(Exception):
    """The text says why, without the address: it may carry a signature."""


class Fetcher:
    """Says nothing of a client to where it asks, and follows no proxy, which would resolve names by itself."""

    def __init__(
        self, allowed: Allowed, network: PublicNetwork | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._schemes = ("https", "http") if allowed == "http" else ("https",)
        self._network = network or PublicNetwork()
        self._tls = tls or httpcore2.default_ssl_context()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def fetch(self, address: str) -> bytes:
        """Raises FetchError."""
        try:
            async with asyncio.timeout(SECONDS), self._turns:
                return await self._followed(address)
        except (TimeoutError, httpcore2.TimeoutException):
            raise FetchError(f"it does not answer, or its answer takes longer than {SECONDS:.0f} s") from None
        except NotPublic:
            raise FetchError("its host has no address on the internet") from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, ssl.SSLError, OSError):
            raise FetchError("no connection to its host, or a broken one") from None

    async def _followed(self, address: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            parts = self._checked(address)
            async with (
                httpcore2.AsyncConnectionPool(ssl_context=self._tls, network_backend=self._network) as pool,
                pool.stream("GET", _url(parts), headers=_headers(parts)) as response,
            ):
                headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
                if response.status not in _REDIRECTS:
                    return await _body(response.status, headers, response.aiter_stream())
            address = urljoin(address, headers.get(b"location", ""))
        raise FetchError(f"it redirects more than {MAX_REDIRECTS} times")

    def _checked(self, address: str) -> SplitResult:
        if len(address) > _MAX_ADDRESS or not all("!" <= character <= "~" for character in address):
            raise FetchError(f"write it in at most {_MAX_ADDRESS} visible ASCII characters")
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError:
            raise FetchError("it is no address") from None
        if parts.scheme not in self._schemes:
            raise FetchError(f"only {' and '.join(self._schemes)} is fetched")
        if not parts.hostname or parts.username is not None or parts.password is not None:
            raise FetchError("write a host, without a user's name")
        if port not in (None, _PORTS[parts.scheme]):
            raise FetchError(f"only port {_PORTS[parts.scheme]} is asked for {parts.scheme}")
        return parts


def _url(parts: SplitResult) -> httpcore2.URL:
    """Of the parts that were checked: no second reader of the address could see another host in it."""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = (parts.hostname or "").encode()
    return httpcore2.URL(scheme=parts.scheme.encode(), host=host, port=None, target=target.encode())


def _headers(parts: SplitResult) -> list[tuple[bytes | str, bytes | str]]:
    host = parts.hostname or ""
    return [
        ("Host", f"[{host}]" if ":" in host else host),
        ("User-Agent", "cosyvoice-worker"),
        ("Accept", "audio/*, application/octet-stream"),
        ("Accept-Encoding", "identity"),  # nothing that unfolds
    ]


async def _body(status: int, headers: dict[bytes, str], pieces: AsyncIterable[bytes]) -> bytes:
    if status != 200:
        raise FetchError(f"it answers with status {status}")
    if headers.get(b"content-encoding", "identity").lower() != "identity":
        raise FetchError("it answers with compressed content")
    length = headers.get(b"content-length", "")
    body = bytearray()
    if length.isdigit() and int(length) > MAX_BYTES:
        raise FetchError(f"it is larger than {MAX_BYTES} bytes")
    async for piece in pieces:
        body += piece
        if len(body) > MAX_BYTES:
            raise FetchError(f"it is larger than {MAX_BYTES} bytes")
    return bytes(body)
