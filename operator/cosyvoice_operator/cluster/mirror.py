"""A local copy of some of the cluster's objects, kept by list and watch."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer

SILENCE_SECONDS = 90
"""The API server sends a bookmark about once a minute; a watch that is silent for longer is dead, whatever TCP says."""
WATCH_SECONDS = 600

logger = logging.getLogger(__name__)

Object = dict[str, Any]


class Mirror:
    """The objects of one list path, e.g. `/api/v1/pods`, that match the selectors.

    The copy is kept when the connection is lost, and is caught up when it is back.
    """

    def __init__(
        self,
        server: ApiServer,
        path: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._server = server
        self._path = path
        self._selectors = {
            key: value for key, value in (("labelSelector", label_selector), ("fieldSelector", field_selector)) if value
        }
        self._on_change = on_change
        self._objects: dict[str, Object] = {}
        self._heard_at = time.monotonic()
        self.synced = asyncio.Event()
        """Set once the first list is here."""

    @property
    def objects(self) -> Mapping[str, Object]:
        """uid -> object, as the API server sent it, less `managedFields`; always the same mapping, kept up to date."""
        return self._objects

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
        # One mapping for life, so that whoever holds `objects` sees what comes later.
        self._objects.clear()
        self._objects.update((item["metadata"]["uid"], _slim(item)) for item in listing["items"])
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
            if event["type"] == "DELETED":
                self._objects.pop(item["metadata"]["uid"], None)
            else:
                self._objects[item["metadata"]["uid"]] = _slim(item)
            self._on_change()
        return version

    def _heard(self) -> None:
        self._heard_at = time.monotonic()


def _slim(item: Object) -> Object:
    item["metadata"].pop("managedFields", None)
    return item


def _longer(delay: float) -> float:
    return min(30.0, max(0.5, 2 * delay))
