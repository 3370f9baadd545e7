"""The Secret in KEDA's namespace with which KEDA proves itself: our CA, and a client certificate that it signed."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.metricsapi.certificate import Pair, ServingIdentity, client_renewed, pair_of
from cosyvoice_operator.metricsapi.keda import CLIENT_NAME

logger = logging.getLogger(__name__)


class KedaSecret:
    """Keeps the Secret's content good. The chart makes the Secret, empty, and the ClusterTriggerAuthentication that
    names it: the key never leaves KEDA's namespace and nobody needs the right to create Secrets."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self._server = server
        self._namespace = namespace
        self._name = name

    async def keep(self, found: Iterable[Mapping[str, Any]], identity: ServingIdentity) -> None:
        """Write it where it does not suit `identity`. Raises ApiError."""
        secret = next(iter(found), None)
        if secret is None:
            raise ApiError(
                404, "NotFound", f"Secret {self._namespace}/{self._name} is missing; `helm upgrade` makes it again"
            )
        data = secret.get("data") or {}
        current = _pair(data)
        client = client_renewed(current, identity.ca, CLIENT_NAME, datetime.now(UTC))
        content = {"ca.crt": identity.ca.certificate, "tls.crt": client.certificate, "tls.key": client.key}
        wanted = {name: base64.b64encode(value).decode() for name, value in content.items()}
        if data == wanted:
            return
        body = {**secret, "apiVersion": "v1", "kind": "Secret", "data": wanted}
        try:
            # Carries the resourceVersion that was read: of two replicas that write at once, one wins.
            await self._server.request("PUT", f"/api/v1/namespaces/{self._namespace}/secrets/{self._name}", body=body)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            return
        logger.info("made a new client certificate for KEDA")


def _pair(data: Mapping[str, str]) -> Pair | None:
    try:
        return pair_of(*(base64.b64decode(data[name], validate=True) for name in ("tls.crt", "tls.key")))
    except (KeyError, ValueError, binascii.Error):
        return None
