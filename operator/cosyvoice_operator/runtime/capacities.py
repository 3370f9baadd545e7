"""What the workers say of themselves, for the status and for who goes first: asked of each ready worker every half a
minute.

Autoscaling does not depend on it; that has the metrics API's own, faster readings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from cosyvoice_contract import WORKER_PORT, CapacityFrom
from cosyvoice_operator.cluster.kinds import POD, Object
from cosyvoice_operator.cluster.store import ServiceKey, Store, service_key
from cosyvoice_operator.cluster.worker_load import load_session, read_load

PERIOD_SECONDS = 30.0
TIMEOUT_SECONDS = 5.0
CONCURRENCY = 64
NEWS = 0.05
"""A capacity that differs by less than this share from what is known is noise."""

logger = logging.getLogger(__name__)


class _Report(BaseModel):
    """The part of `cosyvoice_contract.LoadReport` that the operator reads."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    capacity: float = Field(gt=0)
    capacity_from: CapacityFrom
    running: int = Field(ge=0)
    queued: int = Field(ge=0)


class Capacities:
    """What the ready workers answered last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._measured: dict[str, float] = {}
        self._work: dict[str, int] = {}

    @property
    def measured(self) -> Mapping[str, float]:
        """Pod uid -> audio seconds per second, of workers that have measured it."""
        return self._measured

    @property
    def work(self) -> Mapping[str, int]:
        """Pod uid -> sequences that run and wait, of workers that answered in the last round."""
        return self._work

    async def run(self, changed: Callable[[ServiceKey], None]) -> None:
        """Ask for ever; `changed` is called with a service of whose workers one says something else than before."""
        async with load_session(CONCURRENCY) as session:
            while True:
                await self._round(session, changed)
                await asyncio.sleep(PERIOD_SECONDS)

    async def _round(self, session: aiohttp.ClientSession, changed: Callable[[ServiceKey], None]) -> None:
        pods = [pod for name in self._store.names(POD) if (pod := self._store.get(POD, *name)) is not None]
        ready = [pod for pod in pods if _ready(pod)]
        known = {pod["metadata"]["uid"] for pod in pods}
        self._measured = {uid: capacity for uid, capacity in self._measured.items() if uid in known}
        self._work = {uid: work for uid, work in self._work.items() if uid in known}
        for pod, news in zip(ready, await asyncio.gather(*(self._ask(session, pod) for pod in ready)), strict=True):
            service = service_key(POD, pod)
            if news and service is not None:
                changed(service)

    async def _ask(self, session: aiohttp.ClientSession, pod: Object) -> bool:
        """Whether its answer is news."""
        try:
            body = await read_load(session, pod["status"]["podIP"], WORKER_PORT, TIMEOUT_SECONDS)
            report = _Report.model_validate_json(body)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            logger.debug("load of %s: %s", pod["metadata"]["name"], error or type(error).__name__)
            self._work.pop(pod["metadata"]["uid"], None)
            return False
        self._work[pod["metadata"]["uid"]] = report.running + report.queued
        before = self._measured.get(pod["metadata"]["uid"], 0.0)
        if report.capacity_from != "Measured" or abs(report.capacity - before) <= NEWS * before:
            return False
        self._measured[pod["metadata"]["uid"]] = report.capacity
        return True


def _ready(pod: Object) -> bool:
    return "podIP" in pod["status"] and any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod["status"].get("conditions", ())
    )
