"""The Secret in which the replicas share their serving certificate."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.metricsapi.certificate import ServingIdentity, from_secret_data, renewed, to_secret_data

logger = logging.getLogger(__name__)


class ServingSecret:
    """Reads the Secret's certificate and replaces it in time. The chart makes the Secret, empty, so that this process
    needs no right to create Secrets, and so that it goes with the release."""

    def __init__(self, server: ApiServer, namespace: str, name: str, dns_names: Sequence[str]) -> None:
        self._server = server
        self._namespace = namespace
        self._name = name
        self._dns_names = dns_names

    async def identity(self, found: Iterable[Mapping[str, Any]]) -> ServingIdentity | None:
        """Return the good certificate that the Secret holds, if need be after writing a new one into it.

        None when the other replica was faster: the watch brings what it wrote. Raises ApiError.
        """
        secret = next(iter(found), None)
        if secret is None:
            raise ApiError(
                404, "NotFound", f"Secret {self._namespace}/{self._name} is missing; `helm upgrade` makes it again"
            )
        current = from_secret_data(secret.get("data") or {})
        wanted = renewed(current, self._dns_names, datetime.now(UTC))
        if wanted is current:
            return current
        body = {**secret, "apiVersion": "v1", "kind": "Secret", "data": to_secret_data(wanted)}
        path = f"/api/v1/namespaces/{self._namespace}/secrets/{self._name}"
        try:
            # Carries the resourceVersion that was read: of two replicas that renew at once, one wins and both use its.
            await self._server.request("PUT", path, body=body)
        except ApiError as error:
            if error.code in (404, 409):
                return None
            raise
        logger.info("made a new serving certificate, good until %s", wanted.expires.isoformat())
        return wanted
