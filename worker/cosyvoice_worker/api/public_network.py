"""Connections that lead out of the cluster and nowhere else, whatever a name resolves to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

import httpcore2

Address = IPv4Address | IPv6Address

_CLOSED: Final = [
    ip_network(block)
    for block in (
        "168.63.129.16/32",  # Azure's host, metadata among others: looks public
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.88.99.0/24",  # 6to4 relays
    )
]
"""What `ipaddress` calls global and is not."""
_UNICAST: Final = ip_network("2000::/3")
"""All of IPv6 that is routed on the internet."""
_NAT64: Final = ip_network("64:ff9b::/96")

_CONNECT_SECONDS: Final = 3.0
_resolvers = ThreadPoolExecutor(4, "resolver")
"""Not the threads that encode audio: a name server that does not answer holds one for long."""


class NotPublic(Exception):
    """The host has no address, or one that is not on the internet."""


def is_public(address: Address) -> bool:
    """Whether the address is one host on the internet: not private, loopback, link-local, multicast, reserved, nor an
    IPv6 form of such an IPv4 address."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner:
            return (address in _NAT64 or address.ipv4_mapped is not None) and is_public(inner)
        if address not in _UNICAST:
            return False
    elif any(address in block for block in _CLOSED):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


async def resolved(host: str, port: int) -> Sequence[str]:
    """Addresses of a host; none where it has none."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.run_in_executor(
            _resolvers, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        )
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


class PublicNetwork(httpcore2.AsyncNetworkBackend):
    """Resolves a host once, checks every address and connects to those very addresses: a name that changes its mind in
    between (DNS rebinding) gains nothing. Certificates are still checked against the name."""

    def __init__(
        self,
        inner: httpcore2.AsyncNetworkBackend | None = None,
        resolve: Callable[[str, int], Awaitable[Sequence[str]]] = resolved,
    ) -> None:
        self._inner = inner or httpcore2.AnyIOBackend()
        self._resolve = resolve

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the base class's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises `NotPublic`, and httpcore2's errors."""
        addresses = await self._resolve(host, port)
        if not addresses or not all(is_public(ip_address(address)) for address in addresses):
            raise NotPublic
        problem: Exception = NotPublic()
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, _CONNECT_SECONDS, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                problem = error
        raise problem

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the base class's
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise NotPublic

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
