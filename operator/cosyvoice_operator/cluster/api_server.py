"""JSON in and out of the API server, with the connection settings and credentials of the official client."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

Json = dict[str, Any]


class ApiError(Exception):
    """The API server refused a request; the message is its own."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


class ApiServer:
    """One connection pool to one API server; an async context manager.

    `await ApiServer.connect()` finds it: the pod's service account in a cluster, else the kubeconfig.
    """

    def __init__(self, configuration: Configuration) -> None:
        context = ssl.create_default_context(
            cafile=configuration.ssl_ca_cert or None, cadata=configuration.ca_cert_data or None
        )
        # Cluster CAs made before 2020 often lack the key identifiers that Python 3.13 asks for by default.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._configuration = configuration
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            # A proxy is for a kubeconfig's far-away cluster; inside a pod the environment names none. Only then: with
            # it aiohttp also looks for a netrc file, in a thread, at every request.
            trust_env=bool(getproxies()),
            read_bufsize=2**21,  # one watch event is one line, and an object may be 1.5 MiB
        )

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Self:
        """kubeconfig: path; None takes the service account in a pod, else $KUBECONFIG or ~/.kube/config."""
        configuration = Configuration()
        if kubeconfig is None:
            try:
                kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                return cls(configuration)
            except kube_config.ConfigException:
                pass
        load = kube_config.load_kube_config
        await load(config_file=kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
        return cls(configuration)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        seconds: float = 30,
    ) -> Json:
        """Return the answer's JSON. Raises ApiError, aiohttp.ClientError, or TimeoutError after `seconds`."""
        async with self._session.request(
            method,
            self._url(path, query),
            data=None if body is None else json.dumps(body),
            headers=await self._headers() | {"Content-Type": content_type},
            timeout=aiohttp.ClientTimeout(total=seconds),
        ) as response:
            text = await response.text()
            if response.status >= 400:
                raise _error(response.status, response.reason or "", text)
            answer: Json = json.loads(text)
            return answer

    async def watch(self, path: str, query: Mapping[str, str], *, silence: float) -> AsyncIterator[Json]:
        """Yield the events of a watch until the server ends it. TimeoutError after `silence` seconds without any."""
        async with self._session.get(
            self._url(path, {**query, "watch": "true"}),
            headers=await self._headers(),
            timeout=aiohttp.ClientTimeout(total=None, connect=10, sock_read=silence),
        ) as response:
            if response.status >= 400:
                raise _error(response.status, response.reason or "", await response.text())
            async for line in response.content:
                yield json.loads(line)

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return self._configuration.host + path + (f"?{urlencode(query)}" if query else "")

    async def _headers(self) -> dict[str, str]:
        # The hook behind this call re-reads a service account's token, which changes about once an hour.
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        return {"Accept": "application/json"} | ({"Authorization": token} if token else {})


def _error(code: int, phrase: str, text: str) -> ApiError:
    try:
        status = json.loads(text)
        return ApiError(code, status.get("reason") or phrase, status.get("message") or text)
    except (ValueError, AttributeError):
        return ApiError(code, phrase, text[:500])
