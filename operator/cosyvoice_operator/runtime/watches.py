"""kopf as transport: its watches fill the store and put keys into the queue. No handler writes to an object."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import kopf

from cosyvoice_contract import LABEL_MANAGED_BY, LABEL_SERVICE, MANAGED_BY
from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.apply import Applier
from cosyvoice_operator.cluster.kinds import CHILDREN, COSYVOICE_SERVICE, POD, Kind, Object
from cosyvoice_operator.cluster.store import ServiceKey, Store, service_key
from cosyvoice_operator.runtime.leadership import LEASE, Leadership
from cosyvoice_operator.runtime.queue import WorkQueue
from cosyvoice_operator.runtime.stateless import NoDiffBase, NoProgress

WATCHED = (COSYVOICE_SERVICE, *CHILDREN, POD)
SWEEP_DELAY_SECONDS = 5.0
_SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_SERVICE}"

logger = logging.getLogger(__name__)


class Watches:
    """Listens to services, to what bears their label, and to the replicas' Lease."""

    def __init__(
        self, server: ApiServer, store: Store, applier: Applier, queue: WorkQueue[ServiceKey], leadership: Leadership
    ) -> None:
        self._server = server
        self._store = store
        self._applier = applier
        self._queue = queue
        self._leadership = leadership
        self._listed: set[str] = set()
        self._sweep: asyncio.Task[None] | None = None
        self.synced = asyncio.Event()
        """Set once every kind is listed and in the store."""

    def registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(_login)
        for kind in WATCHED:
            # kopf calls no event handler before all indexed kinds are listed: that is how `synced` is known.
            kopf.index(**_selector(kind), id=f"store-{kind.plural}", registry=registry)(self._taker(kind))
            kopf.on.event(**_selector(kind), id=f"watch-{kind.plural}", registry=registry)(self._listener(kind))
        kopf.on.event(**_selector(LEASE), id="watch-lease", registry=registry)(self._hear_lease)
        return registry

    def settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 330
        settings.watching.connect_timeout = 10
        settings.watching.inactivity_timeout = 70
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.networking.enforce_retry_after = True
        settings.peering.standalone = True
        settings.posting.enabled = False
        settings.persistence.diffbase_storage = NoDiffBase()
        settings.persistence.progress_storage = NoProgress()
        settings.scanning.disabled = True  # resources and namespaces are known: no right to list them is needed
        settings.queueing.idle_timeout = 1
        for kind in (*CHILDREN, POD):
            settings.watching.label_selectors[kopf_selector(kind)] = _SELECTOR
        settings.watching.field_selectors[kopf_selector(LEASE)] = (
            f"metadata.name={self._leadership.name},metadata.namespace={self._leadership.namespace}"
        )
        return settings

    def _taker(self, kind: Kind) -> Any:
        async def take(body: kopf.Body, **_: Any) -> None:
            raw = dict(body)
            if self._store.put(kind, raw):
                self._enqueue(kind, raw)

        return take

    def _listener(self, kind: Kind) -> Any:
        async def listen(event: kopf.RawEvent, **_: Any) -> None:
            raw: Object = event["object"]  # type: ignore[assignment]
            uid = raw["metadata"]["uid"]
            if event["type"] == "DELETED":
                self._listed.discard(uid)
                self._forget(kind, raw)
            elif event["type"] is None and uid in self._listed:
                self._relisted()
            else:
                self._listed.add(uid)

        return listen

    async def _hear_lease(self, event: kopf.RawEvent, **_: Any) -> None:
        if event["type"] is None and self.synced.is_set():
            self._relisted()
        self._leadership.seen()
        self.synced.set()

    def _enqueue(self, kind: Kind, raw: Object) -> None:
        key = service_key(kind, raw)
        if key is not None:
            self._queue.add(key)

    def _forget(self, kind: Kind, raw: Object) -> None:
        self._store.remove(kind, raw)
        self._applier.forget_child(kind, raw["metadata"]["namespace"], raw["metadata"]["name"])
        self._enqueue(kind, raw)

    def _relisted(self) -> None:
        """A watch had to list again: what was deleted meanwhile has had no event, so look for it once."""
        if self._sweep is None or self._sweep.done():
            self._sweep = asyncio.create_task(self._sweep_away())

    async def _sweep_away(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_DELAY_SECONDS)
            try:
                return await self._forget_the_lost()
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                logger.warning("looking for what was deleted meanwhile: %s", error or type(error).__name__)

    async def _forget_the_lost(self) -> None:
        for kind in WATCHED:
            known = {name: self._store.get(kind, *name) for name in self._store.names(kind)}
            query = {} if kind is COSYVOICE_SERVICE else {"labelSelector": _SELECTOR}
            listing = await self._server.request("GET", f"{kind.root}/{kind.plural}", query=query)
            present = {item["metadata"]["uid"] for item in listing["items"]}
            for lost in known.values():
                if lost is not None and lost["metadata"]["uid"] not in present:
                    self._forget(kind, lost)


def kopf_selector(kind: Kind) -> Any:
    return (kind.group, kind.version, kind.plural)


def _selector(kind: Kind) -> dict[str, Any]:
    return {"group": kind.group, "version": kind.version, "plural": kind.plural}


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
