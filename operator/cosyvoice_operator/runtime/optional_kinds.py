"""Kinds that a cluster may lack, e.g. those of the Gateway API: found when they come, listened to while they are there.

kopf looks for kinds once, at its start. These may be installed, and removed, at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import aiohttp

from cosyvoice_contract import LABEL_MANAGED_BY, LABEL_SERVICE, MANAGED_BY
from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.apply import Applier
from cosyvoice_operator.cluster.kinds import OPTIONAL, Kind, Object
from cosyvoice_operator.cluster.mirror import Mirror
from cosyvoice_operator.cluster.store import ServiceKey, Store, service_key

LIST_SECONDS = 20.0
RETRY_SECONDS = 5.0
LOOK_SECONDS = 600.0
"""Without the right to watch CRDs, which a namespaced install does not have, this often is looked for them."""
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

logger = logging.getLogger(__name__)


class OptionalKinds:
    """Fills the store with the objects of optional kinds, and knows which of these kinds there are."""

    def __init__(self, server: ApiServer, store: Store, applier: Applier, namespace: str | None) -> None:
        """namespace: the only one to look at, if any."""
        self._server = server
        self._store = store
        self._applier = applier
        self._changed: Callable[[ServiceKey], None] = lambda _: None
        self._namespace = namespace
        self._served: set[Kind] = set()
        self._looked: set[Kind] = set()
        self.synced = asyncio.Event()
        """Set once every kind was looked for, and what there is of it is in the store."""

    @property
    def served(self) -> frozenset[str]:
        """As `group/version/Kind`."""
        return frozenset(kind.type_name for kind in self._served)

    async def run(self, changed: Callable[[ServiceKey], None]) -> None:
        """Follow them for ever; `changed` is called with a service of which an object has changed."""
        self._changed = changed
        async with asyncio.TaskGroup() as group:
            for kind in OPTIONAL:
                group.create_task(self._follow(kind))

    async def _follow(self, kind: Kind) -> None:
        """For ever: the kind comes, is listened to, and goes."""
        crd_changed = asyncio.Event()
        crd = Mirror(
            self._server,
            _CRDS,
            field_selector=f"metadata.name={kind.plural}.{kind.group}",
            on_change=crd_changed.set,
            slim=lambda item: {"metadata": {"uid": item["metadata"]["uid"]}},
        )
        async with asyncio.TaskGroup() as group:
            if self._namespace is None:
                group.create_task(crd.run())
            listening: asyncio.Task[None] | None = None
            while True:
                crd_changed.clear()
                there = await self._is_served(kind)
                if there and listening is None:
                    listening = await self._listen(kind, group)
                elif not there and listening is not None:
                    listening.cancel()
                    listening = None
                    self._lose(kind)
                self._looked.add(kind)
                if len(self._looked) == len(OPTIONAL):
                    self.synced.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS if self._namespace is not None else None):
                        await crd_changed.wait()

    async def _is_served(self, kind: Kind) -> bool:
        """Asks discovery, which everybody may."""
        while True:
            try:
                listing = await self._server.request("GET", kind.root)
                return any(resource["name"] == kind.plural for resource in listing["resources"])
            except ApiError as error:
                if error.code == 404:
                    return False
                logger.warning("looking for %s: %s", kind.type_name, error)
            except (aiohttp.ClientError, TimeoutError) as error:
                logger.warning("looking for %s: %s", kind.type_name, error or type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self, kind: Kind, group: asyncio.TaskGroup) -> asyncio.Task[None] | None:
        """None where it may not be read: then it is as if it were not there."""
        mirror = Mirror(
            self._server,
            f"{kind.root}/{kind.plural}" if self._namespace is None else kind.collection(self._namespace),
            label_selector=f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_SERVICE}",
            slim=lambda item: self._take(kind, item),
            on_gone=lambda kept: self._forget(kind, kept),
        )
        listening = group.create_task(mirror.run())
        try:
            async with asyncio.timeout(LIST_SECONDS):
                await mirror.synced.wait()
        except TimeoutError:
            logger.error("%s is served but cannot be listed: no such object will be made", kind.type_name)
            listening.cancel()
            return None
        logger.info("%s is served", kind.type_name)
        self._served.add(kind)
        self._look_at_all()
        return listening

    def _lose(self, kind: Kind) -> None:
        logger.info("%s is served no longer", kind.type_name)
        self._served.discard(kind)
        for name in list(self._store.names(kind)):
            found = self._store.get(kind, *name)
            if found is not None:
                self._forget(kind, found)
        self._look_at_all()

    def _look_at_all(self) -> None:
        for service in self._store.services():
            self._changed(service)

    def _take(self, kind: Kind, item: Object) -> Object:
        if self._store.put(kind, item):
            self._tell(kind, item)
        return {"metadata": {name: item["metadata"].get(name) for name in ("uid", "namespace", "name", "labels")}}

    def _forget(self, kind: Kind, kept: Object) -> None:
        self._store.remove(kind, kept)
        self._applier.forget_child(kind, kept["metadata"]["namespace"], kept["metadata"]["name"])
        self._tell(kind, kept)

    def _tell(self, kind: Kind, item: Object) -> None:
        service = service_key(kind, item)
        if service is not None:
            self._changed(service)
