"""Proof of life: the operator writes a Lease of its own and has to see that write come back through its watches.

That the process answers HTTP proves nothing: an operator whose watches died looks healthy and is deaf.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable

import aiohttp

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.kinds import Kind
from cosyvoice_operator.cluster.store import FIELD_MANAGER

LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
PERIOD_SECONDS = 15.0
DEAF_AFTER_SECONDS = 90.0
"""Longer than kopf needs to notice a silent watch (70 s) and to open it again."""

logger = logging.getLogger(__name__)


class Heartbeat:
    """Beats into the Lease `name`; `seen()` is called for every event of it that a watch brings."""

    def __init__(
        self, server: ApiServer, namespace: str, name: str, holder: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = server
        self.namespace, self.name = namespace, name
        self._holder = holder
        self._clock = clock
        self._unseen_since: float | None = None
        """When the oldest beat was written that no watch has brought back yet."""

    @property
    def deaf_for(self) -> float:
        """Seconds for which a beat that was written has not been seen; 0 while all is well."""
        return 0.0 if self._unseen_since is None else self._clock() - self._unseen_since

    @property
    def alive(self) -> bool:
        return self.deaf_for < DEAF_AFTER_SECONDS

    def seen(self) -> None:
        self._unseen_since = None

    async def run(self) -> None:
        """Beat for ever. An API server that takes no writes is not our watches' fault and does not count."""
        while True:
            started = self._clock()
            try:
                await self._beat()
                if self._unseen_since is None:
                    self._unseen_since = started
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                logger.warning("writing lease %s/%s: %s", self.namespace, self.name, error or type(error).__name__)
            await asyncio.sleep(PERIOD_SECONDS)

    async def _beat(self) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        await self._server.request(
            "PATCH",
            LEASE.path(self.namespace, self.name),
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body={
                "apiVersion": LEASE.api_version,
                "kind": LEASE.name,
                "metadata": {"namespace": self.namespace, "name": self.name},
                "spec": {"holderIdentity": self._holder, "renewTime": now},
            },
            content_type="application/apply-patch+yaml",
        )
