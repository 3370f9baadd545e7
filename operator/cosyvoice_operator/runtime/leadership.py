"""One Lease, two uses: who of the replicas works, and whether this one's watches are alive.

Work is the leader's; the others watch along, so that whoever takes over starts with everything listed. And since the
Lease changes every few seconds, a replica whose watches do not bring those changes is deaf, however well it answers
HTTP: an operator whose watches died looks healthy to every other probe.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable

import aiohttp

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.kinds import Kind, Object

LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")

TURN_SECONDS = 3.0
LEASE_SECONDS = 15.0
"""A leader that is not heard of for this long is succeeded."""
RENEW_SECONDS = 10.0
"""A leader that could not renew for this long stops working, well before another may start."""
DEAF_AFTER_SECONDS = 90.0
"""Longer than kopf needs to notice a silent watch (70 s) and to open it again."""

logger = logging.getLogger(__name__)


class Leadership:
    """Takes part in the election; `seen()` is to be called for every event of the Lease that a watch brings."""

    def __init__(
        self, server: ApiServer, namespace: str, name: str, holder: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """holder: unique among the replicas, e.g. the pod's name."""
        self._server = server
        self.namespace, self.name = namespace, name
        self._holder = holder
        self._clock = clock
        self._lease: Object | None = None
        """The newest that is known, from requests, not from the watch; None: it is to be read first."""
        self._version = ""
        self._changed_at = 0.0
        self._renewed_at = 0.0
        self._unseen_since: float | None = None
        """When the oldest change was made that no watch has brought yet."""
        self._answered_at = 0.0
        """When the API server last answered a request about the Lease."""
        self._leads = asyncio.Event()
        self._follows = asyncio.Event()
        self._follows.set()

    @property
    def leads(self) -> bool:
        return self._leads.is_set()

    @property
    def deaf_for(self) -> float:
        """Seconds for which a change of the Lease has not come by the watches; 0 while all is well.

        Counted while the API server answers requests: when it is away, so are the watches, and a restart mends nothing.
        """
        return 0.0 if self._unseen_since is None else max(0.0, self._answered_at - self._unseen_since)

    @property
    def alive(self) -> bool:
        return self.deaf_for < DEAF_AFTER_SECONDS

    def seen(self) -> None:
        self._unseen_since = None

    async def won(self) -> None:
        """Wait until this replica leads."""
        await self._leads.wait()

    async def lost(self) -> None:
        """Wait until this replica leads no more."""
        await self._follows.wait()

    async def run(self) -> None:
        """Take part for ever. What the API server cannot answer is no reason to end, only to lead no longer."""
        while True:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await self._turn()
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                logger.warning("lease %s/%s: %s", self.namespace, self.name, error or type(error).__name__)
                self._lease = None
            if self.leads and self._clock() - self._renewed_at > RENEW_SECONDS:
                self._set_leading(False)
            await asyncio.sleep(TURN_SECONDS)

    async def resign(self) -> None:
        """Give the Lease back, so that a successor need not wait for it to run out."""
        if not self.leads or self._lease is None:
            return
        self._set_leading(False)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._write(self._lease, holder="")
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            logger.info("lease %s/%s not given back: %s", self.namespace, self.name, error or type(error).__name__)

    async def _turn(self) -> None:
        if not (self.leads and self._lease is not None):
            lease = await self._read()
            if lease is None:
                return  # another was faster to make it
            holder = lease["spec"].get("holderIdentity", "")
            if holder not in ("", self._holder) and self._clock() - self._changed_at < LEASE_SECONDS:
                self._set_leading(False)
                return
        assert self._lease is not None
        started = self._clock()
        try:
            self._know(await self._write(self._lease, self._holder))
        except ApiError as error:
            if error.code != 409:
                raise
            self._lease = None
            self._set_leading(False)  # another was faster
            return
        self._renewed_at = started
        self._set_leading(True)

    async def _read(self) -> Object | None:
        try:
            lease = await self._server.request("GET", LEASE.path(self.namespace, self.name))
        except ApiError as error:
            if error.code != 404:
                raise
            # The chart brings the Lease; this is for an operator that runs without it.
            body = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "spec": {}}
            body["metadata"] = {"namespace": self.namespace, "name": self.name}
            try:
                lease = await self._server.request("POST", LEASE.collection(self.namespace), body=body)
            except ApiError as taken:
                if taken.code != 409:
                    raise
                return None
        self._know(lease)
        return lease

    async def _write(self, lease: Object, holder: str) -> Object:
        """With the version that was read: of two replicas that write at once, one is refused."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease["spec"]
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(LEASE_SECONDS),
            "renewTime": now,
            "acquireTime": before["acquireTime"] if before.get("holderIdentity") == holder else now,
            "leaseTransitions": before.get("leaseTransitions", 0) + (before.get("holderIdentity") != holder),
        }
        body = {**lease, "metadata": _identity(lease), "spec": spec}
        path = LEASE.path(self.namespace, self.name)
        return await self._server.request("PUT", path, body=body)

    def _know(self, lease: Object) -> None:
        """Note a change of the Lease: the watches now have to bring it."""
        now = self._clock()
        if self._unseen_since is not None and now - self._answered_at > RENEW_SECONDS:
            self._unseen_since += now - self._answered_at  # it was away; now the watches need their time to come back
        self._answered_at = now
        version = lease["metadata"]["resourceVersion"]
        if version != self._version:
            self._version = version
            self._changed_at = now
            if self._unseen_since is None:
                self._unseen_since = self._changed_at
        self._lease = lease

    def _set_leading(self, leads: bool) -> None:
        if leads == self.leads:
            return
        logger.info("%s: %s", self._holder, "leads" if leads else "leads no longer")
        (self._leads if leads else self._follows).set()
        (self._follows if leads else self._leads).clear()


def _identity(lease: Object) -> Object:
    return {name: lease["metadata"][name] for name in ("namespace", "name", "uid", "resourceVersion")}
