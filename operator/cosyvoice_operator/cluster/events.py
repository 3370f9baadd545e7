"""Events: what `kubectl describe` shows of a service's past."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import uuid
from typing import Any

import aiohttp

from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.kinds import COSYVOICE_SERVICE, Object

WAITING_AT_MOST = 1000
NOTE_MAX_BYTES = 1024
"""The API server refuses a longer one."""
_GOOD_WHEN_FALSE = {"RolloutBlocked", "CapacityShortfall"}

logger = logging.getLogger(__name__)


class Events:
    """Posts one Event for each change of a condition. An Event that is lost is a pity and no failure."""

    def __init__(self, server: ApiServer, instance: str) -> None:
        """instance: name of this operator's pod."""
        self._server = server
        self._instance = instance
        self._waiting: asyncio.Queue[tuple[Object, dict[str, Any]]] = asyncio.Queue(maxsize=WAITING_AT_MOST)

    def post(self, service: Object, condition: dict[str, Any]) -> None:
        """Without waiting: telling must not hold up doing."""
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait((service, condition))

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self._send(*await self._waiting.get())

    async def _send(self, service: Object, condition: dict[str, Any]) -> None:
        metadata = service["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": f"{name}.{uuid.uuid4().hex[:16]}"},
            "regarding": {
                "apiVersion": COSYVOICE_SERVICE.api_version,
                "kind": COSYVOICE_SERVICE.name,
                "namespace": namespace,
                "name": name,
                "uid": metadata["uid"],
            },
            "type": "Warning" if _bad(condition) else "Normal",
            "reason": condition["reason"],
            "action": f"{condition['type']}{condition['status']}",
            "note": condition["message"].encode()[:NOTE_MAX_BYTES].decode(errors="ignore"),
            "eventTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": "tts.cosyvoice.io/operator",
            "reportingInstance": self._instance,
        }
        try:
            await self._server.request("POST", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", body=body)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            logger.debug("event %s of %s/%s: %s", condition["reason"], namespace, name, error)


def _bad(condition: dict[str, Any]) -> bool:
    if condition["reason"] == "Disabled":
        return False  # what the user asked for
    return bool(condition["status"] == ("True" if condition["type"] in _GOOD_WHEN_FALSE else "False"))
