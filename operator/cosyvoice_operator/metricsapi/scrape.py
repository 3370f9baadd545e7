"""Asks every worker for its load, once per interval, however many callers want to know; a new one at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cosyvoice_operator.cluster.worker_load import load_session, read_load
from cosyvoice_operator.metricsapi.aggregate import Reading
from cosyvoice_operator.metricsapi.pools import Object, counts
from cosyvoice_operator.metricsapi.telemetry import Telemetry

COALESCE_SECONDS = 0.1
"""A rollout changes many pods at once; they are looked through together."""

logger = logging.getLogger(__name__)


class Report(BaseModel):
    """The part of `cosyvoice_contract.LoadReport` that scaling reads; finite, not negative: it must not spoil a sum."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)

    gpu_load: float = Field(ge=0)
    gpu_utilization: float | None = Field(ge=0)
    gpu_memory: float = Field(ge=0)


def parse_report(body: bytes, *, taken_at: float) -> Reading:
    """Read the body of `GET /load`. Raises ValueError when it is no load report."""
    try:
        return Reading(taken_at, Report.model_validate_json(body).model_dump())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise ValueError(f"not a load report: {where}: {first['msg']}") from error


class Scraper:
    """Holds the last reading of every worker that counts; readings of pods that are gone go with them.

    pods: gives the pods as they are now. pods_changed: set when they may differ. interval, timeout: seconds.
    """

    def __init__(
        self,
        pods: Callable[[], Iterable[Object]],
        pods_changed: asyncio.Event,
        telemetry: Telemetry,
        *,
        port: int,
        interval: float,
        timeout: float,
        concurrency: int,
    ) -> None:
        self._pods = pods
        self._pods_changed = pods_changed
        self._telemetry = telemetry
        self._port = port
        self._interval = interval
        self._timeout = timeout
        self._concurrency = concurrency
        self._readings: dict[str, Reading] = {}
        self._failing: dict[str, str] = {}
        self._asked: dict[str, float] = {}
        self.first_round = asyncio.Event()
        """Set when the first round is over."""

    @property
    def readings(self) -> Mapping[str, Reading]:
        """Pod uid -> its last reading, of whatever age."""
        return self._readings

    def readings_of_all(self) -> Iterable[Reading]:
        return self._readings.values()

    async def run(self) -> None:
        """Scrape for ever, a round per interval."""
        async with load_session(self._concurrency) as session:
            while True:
                started = time.monotonic()
                await self.round(session)
                took = time.monotonic() - started
                self._telemetry.round_seconds.observe(took)
                self.first_round.set()
                while (left := started + self._interval - time.monotonic()) > 0:
                    self._pods_changed.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._pods_changed.wait(), left)
                        await asyncio.sleep(COALESCE_SECONDS)
                        self._pods_changed.clear()
                        await self.ask_new(session)

    async def round(self, session: aiohttp.ClientSession) -> None:
        """Ask every worker that counts once, and forget those that do not any more.

        A round ends with its interval, and those that answered last time come first: however many hang, they take
        nothing from the freshness of the others. Of those that hang, the one not asked for longest comes first.
        """
        workers = [pod for pod in self._pods() if counts(pod)]
        alive = {pod["metadata"]["uid"] for pod in workers}
        self._readings = {uid: reading for uid, reading in self._readings.items() if uid in alive}
        self._failing = {uid: why for uid, why in self._failing.items() if uid in alive}
        self._asked = {uid: when for uid, when in self._asked.items() if uid in alive}
        workers.sort(key=lambda pod: self._urgency(pod["metadata"]["uid"]))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval):
                await self._ask_all(session, workers)

    async def ask_new(self, session: aiohttp.ClientSession) -> None:
        """Ask the workers that have come since the last round: until then they would count as silent, and many of
        them at once would leave the autoscaler without a number."""
        await self._ask_all(
            session, [pod for pod in self._pods() if pod["metadata"]["uid"] not in self._asked and counts(pod)]
        )

    def _urgency(self, uid: str) -> tuple[bool, float]:
        return uid in self._failing, self._asked.get(uid, 0.0)

    async def _ask_all(self, session: aiohttp.ClientSession, workers: Sequence[Object]) -> None:
        queue = iter(workers)

        async def ask_next() -> None:
            for pod in queue:
                await self._ask(session, pod)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency, len(workers))):
                group.create_task(ask_next())

    async def _ask(self, session: aiohttp.ClientSession, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self._asked[uid] = time.monotonic()
        try:
            body = await read_load(session, pod["status"]["podIP"], self._port, self._timeout)
            self._readings[uid] = parse_report(body, taken_at=time.time())
            outcome, why = "ok", ""
        except TimeoutError:
            outcome, why = "timeout", f"no answer within {self._timeout:g} s"
        except aiohttp.ClientResponseError as error:
            outcome, why = "http_error", f"HTTP {error.status}"
        except aiohttp.ClientError as error:
            outcome, why = "unreachable", str(error) or type(error).__name__
        except ValueError as error:
            outcome, why = "malformed", str(error)
        self._telemetry.scrapes.labels(outcome).inc()
        self._log_change(pod, uid, why)

    def _log_change(self, pod: Object, uid: str, why: str) -> None:
        """Log when a worker falls silent, and when it speaks again; not every round."""
        meta = pod["metadata"]
        if why and uid not in self._failing:
            logger.warning("worker %s/%s gives no reading: %s", meta["namespace"], meta["name"], why)
            self._failing[uid] = why
        elif not why and self._failing.pop(uid, ""):
            logger.info("worker %s/%s gives readings again", meta["namespace"], meta["name"])
