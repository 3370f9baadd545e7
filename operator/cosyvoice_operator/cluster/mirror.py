"""A local copy of some of the cluster's objects, kept by list and watch."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import aiohttp

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer

SILENCE_SECONDS = 90
"""The API server sends a bookmark about once a minute; a watch that is silent for longer is dead, whatever TCP says."""
WATCH_SECONDS = 600

logger = logging.getLogger(__name__)

Object = dict[str, Any]


def without_managed_fields(item: Object) -> Object:
    item["metadata"].pop("managedFields", None)
    return item


class Mirror:
    """The objects of one list path, e.g. `/api/v1/pods`, that match the selectors.

    The copy is kept when the connection is lost, and is caught up when it is back.

    slim: makes of an object what is kept of it. key: by what `of` finds objects, of what is kept.
    on_gone: called with what was kept of an object that is gone.
    """

    def __init__(
        self,
        server: ApiServer,
        path: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
        on_change: Callable[[], None] = lambda: None,
        on_gone: Callable[[Object], None] = lambda _: None,
        slim: Callable[[Object], Object] = without_managed_fields,
        key: Callable[[Object], Hashable] = lambda _: None,
    ) -> None:
        self._server = server
        self._path = path
        self._selectors = {
            key: value for key, value in (("labelSelector", label_selector), ("fieldSelector", field_selector)) if value
        }
        self._on_change = on_change
        self._on_gone = on_gone
        self._slim = slim
        self._key = key
        self._objects: dict[str, Object] = {}
        self._by_key: defaultdict[Hashable, dict[str, Object]] = defaultdict(dict)
        self._heard_at = time.monotonic()
        self.synced = asyncio.Event()
        """Set once the first list is here."""

    @property
    def objects(self) -> Mapping[str, Object]:
        """uid -> what is kept of the object; always the same mapping, kept up to date."""
        return self._objects

    def of(self, key: Hashable) -> Collection[Object]:
        """The objects of one key."""
        return self._by_key[key].values() if key in self._by_key else ()

    @property
    def silent_seconds(self) -> float:
        """Since the API server last gave a sign of life on this watch."""
        return time.monotonic() - self._heard_at

    async def run(self) -> None:
        """Keep the copy, for ever."""
        delay = 0.0
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                started = time.monotonic()
                version = await self._watch(version)
                # A watch lasts minutes; one that a server or proxy ends at once must not become a hot loop.
                delay = 0.0 if time.monotonic() - started > 5 else _longer(delay)
            except ApiError as error:
                # 410 Gone: the version is too old for the server's memory, so list again; nothing is wrong.
                if error.code != 410:
                    logger.warning("watching %s: %s", self._path, error)
                    delay = _longer(delay)
                version = ""
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                logger.warning("watching %s: %s", self._path, str(error) or type(error).__name__)
                delay = _longer(delay)
                version = ""
            await asyncio.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 - spreads reconnects, no secret

    async def _list(self) -> str:
        listing = await self._server.request("GET", self._path, query=self._selectors)
        before = dict(self._objects)
        # One mapping for life, so that whoever holds `objects` sees what comes later.
        self._objects.clear()
        self._by_key.clear()
        for item in listing["items"]:
            self._put(item)
        for uid in before.keys() - self._objects.keys():
            self._on_gone(before[uid])
        self._heard()
        self.synced.set()
        self._on_change()
        version: str = listing["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> str:
        query = self._selectors | {
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async for event in self._server.watch(self._path, query, silence=SILENCE_SECONDS):
            self._heard()
            item = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(item.get("code", 0), item.get("reason", ""), item.get("message", ""))
            version = item["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                continue
            kept = self._drop(item["metadata"]["uid"])
            if event["type"] != "DELETED":
                self._put(item)
            elif kept is not None:
                self._on_gone(kept)
            self._on_change()
        return version

    def _put(self, item: Object) -> None:
        uid, kept = item["metadata"]["uid"], self._slim(item)
        self._objects[uid] = self._by_key[self._key(kept)][uid] = kept

    def _drop(self, uid: str) -> Object | None:
        kept = self._objects.pop(uid, None)
        if kept is not None:
            key = self._key(kept)
            del self._by_key[key][uid]
            if not self._by_key[key]:
                del self._by_key[key]
        return kept

    def _heard(self) -> None:
        self._heard_at = time.monotonic()


def _longer(delay: float) -> float:
    return min(30.0, max(0.5, 2 * delay))
