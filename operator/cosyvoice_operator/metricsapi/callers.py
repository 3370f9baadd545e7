"""Who calls, and may they: kube-apiserver by its front-proxy certificate, the user behind it by the headers it sets,
their rights by SubjectAccessReview."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

from cosyvoice_operator.cluster.api_server import ApiServer

REVIEW_SECONDS = 10
"""How long an answer of the API server about somebody's rights is used again."""
MAX_REVIEWS = 1000
AUTHENTICATED = "system:authenticated"
ANONYMOUS = "system:anonymous"


class Headers(Protocol):
    """HTTP headers with several values of one name, names in any case."""

    def getall(self, key: str, default: list[str]) -> list[str]: ...
    def items(self) -> Any: ...


class Unauthenticated(Exception):
    """The caller did not show who it is; answered with 401."""


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """How kube-apiserver proves itself and names its user: ConfigMap kube-system/extension-apiserver-authentication."""

    client_ca: str
    """PEM; who shows a certificate signed by it may speak for users."""
    allowed_names: Sequence[str]
    """Common names that such a certificate may bear; empty allows any."""
    username_headers: Sequence[str]
    group_headers: Sequence[str]
    extra_prefixes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Caller:
    """The user on whose behalf kube-apiserver asks."""

    user: str
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further attributes and their values, as the front proxy's headers carry them."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a request wants to do, in the terms that kube-apiserver itself used to authorise it."""

    path: str
    namespace: str = ""
    resource: str = ""
    """Empty for discovery, which is authorised by path."""
    name: str = ""
    metric: str = ""
    group: str = ""
    version: str = ""


def read_front_proxy(data: Mapping[str, str]) -> FrontProxy:
    """Read the ConfigMap's `data`. Raises ValueError when it does not say whom to trust."""
    client_ca = data.get("requestheader-client-ca-file", "")
    if not client_ca:
        raise ValueError(
            "ConfigMap kube-system/extension-apiserver-authentication has no requestheader-client-ca-file: "
            "start kube-apiserver with --requestheader-client-ca-file and --proxy-client-cert-file"
        )
    return FrontProxy(
        client_ca,
        allowed_names=json.loads(data.get("requestheader-allowed-names") or "[]"),
        username_headers=json.loads(data.get("requestheader-username-headers") or "[]"),
        group_headers=json.loads(data.get("requestheader-group-headers") or "[]"),
        extra_prefixes=json.loads(data.get("requestheader-extra-headers-prefix") or "[]"),
    )


def authenticate(proxy: FrontProxy, certificate: Mapping[str, Any] | None, headers: Headers) -> Caller:
    """Say who calls. `certificate` is the peer's, verified by TLS against `proxy.client_ca`, as `ssl` gives it.

    Raises Unauthenticated; headers of anybody but the front proxy are worth nothing.
    """
    if not certificate:
        raise Unauthenticated("no client certificate: only kube-apiserver may call, by its front-proxy certificate")
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    if proxy.allowed_names and not set(names) & set(proxy.allowed_names):
        raise Unauthenticated(f"certificate of {', '.join(names) or 'nobody'} may not speak for users")
    user = next((value for name in proxy.username_headers for value in headers.getall(name, []) if value), "")
    if not user:
        raise Unauthenticated(f"no user in {', '.join(proxy.username_headers) or 'any header'}")
    groups = [value for name in proxy.group_headers for value in headers.getall(name, [])]
    # As every API server does: kube-apiserver's own requests for discovery name no group at all.
    if user != ANONYMOUS and AUTHENTICATED not in groups:
        groups.append(AUTHENTICATED)
    return Caller(user, tuple(groups), _extra(proxy, headers))


def _extra(proxy: FrontProxy, headers: Headers) -> tuple[tuple[str, tuple[str, ...]], ...]:
    extra: dict[str, list[str]] = {}
    for name, value in headers.items():
        for prefix in proxy.extra_prefixes:
            if name.lower().startswith(prefix.lower()):
                extra.setdefault(unquote(name[len(prefix) :].lower()), []).append(value)
    return tuple((key, tuple(values)) for key, values in sorted(extra.items()))


class Authorizer:
    """Asks the API server whether a caller may; remembers the answer for a few seconds."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._answers: dict[tuple[Caller, Access], tuple[float, bool]] = {}

    async def allows(self, caller: Caller, access: Access) -> bool:
        """Raises what ApiServer.request raises when the API server cannot be asked: then nobody is let in."""
        key = (caller, access)
        now = time.monotonic()
        known = self._answers.get(key)
        if known and known[0] > now:
            return known[1]
        review = await self._server.request(
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "user": caller.user,
                    "groups": list(caller.groups),
                    "extra": {key: list(values) for key, values in caller.extra},
                    **_attributes(access),
                },
            },
            seconds=10,
        )
        allowed = review["status"].get("allowed") is True
        if len(self._answers) >= MAX_REVIEWS:
            self._answers = {k: answer for k, answer in self._answers.items() if answer[0] > now}
        if len(self._answers) < MAX_REVIEWS:
            self._answers[key] = (now + REVIEW_SECONDS, allowed)
        return allowed


def _attributes(access: Access) -> dict[str, Any]:
    if not access.resource:
        return {"nonResourceAttributes": {"verb": "get", "path": access.path}}
    return {
        "resourceAttributes": {
            "verb": "get",
            "group": access.group,
            "version": access.version,
            "resource": access.resource,
            "subresource": access.metric,
            "namespace": access.namespace,
            "name": access.name,
        }
    }
