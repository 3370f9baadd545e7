"""The operator process: watches, queue, heartbeat, probes, and how they live and end together."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Awaitable, Callable

import kopf

from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.apply import Applier
from cosyvoice_operator.cluster.events import Events
from cosyvoice_operator.cluster.kinds import COSYVOICE_SERVICE
from cosyvoice_operator.cluster.store import ServiceKey, Store
from cosyvoice_operator.runtime.heartbeat import Heartbeat
from cosyvoice_operator.runtime.http import serve
from cosyvoice_operator.runtime.queue import WorkQueue
from cosyvoice_operator.runtime.reconciler import Reconciler
from cosyvoice_operator.runtime.telemetry import DEAF_SECONDS, QUEUE_DEPTH, RECONCILES
from cosyvoice_operator.runtime.watches import Watches

WORKERS = 8
"""Services that are worked on at once; a pass spends its time waiting for the API server."""
CRD_POLL_SECONDS = 2.0

logger = logging.getLogger(__name__)


async def run(settings: Settings, own_namespace: str, port: int) -> None:
    """Run until SIGTERM or SIGINT. Raises what makes the process useless: it is then to be restarted."""
    async with await ApiServer.connect() as server:
        await _wait_for_crd(server)
        store = Store()
        applier = Applier(server, store)
        reconciler = Reconciler(settings, store, applier, Events(server, socket.gethostname()))
        queue = WorkQueue[ServiceKey](_measured(reconciler))
        heartbeat = Heartbeat(server, own_namespace, "cosyvoice-operator", socket.gethostname())
        watches = Watches(server, store, applier, queue, heartbeat)
        QUEUE_DEPTH.set_function(lambda: queue.depth)
        DEAF_SECONDS.set_function(lambda: heartbeat.deaf_for)
        async with (
            serve(port, lambda: heartbeat.alive, watches.synced.is_set) as bound,
            asyncio.TaskGroup() as group,
        ):
            logger.info("probes and metrics on port %d", bound)
            tasks = [
                group.create_task(heartbeat.run()),
                group.create_task(_work(watches, queue)),
                group.create_task(_resync(store, queue, settings.resync_seconds)),
            ]
            # kopf ends for SIGTERM and SIGINT; it raises when a watch cannot go on.
            await kopf.operator(
                registry=watches.registry(), settings=watches.settings(), clusterwide=True, standalone=True
            )
            for task in tasks:
                task.cancel()


async def _work(watches: Watches, queue: WorkQueue[ServiceKey]) -> None:
    await watches.synced.wait()
    logger.info("all kinds are listed; %d services to look at", queue.depth)
    await queue.run(WORKERS)


async def _resync(store: Store, queue: WorkQueue[ServiceKey], period: float) -> None:
    """Look at every service again and again, spread over the period, whatever the watches said."""
    while True:
        services = store.services()
        random.shuffle(services)
        for service in services:
            queue.add(service)
            await asyncio.sleep(period / (len(services) + 1))
        await asyncio.sleep(period / (len(services) + 1))


async def _wait_for_crd(server: ApiServer) -> None:
    """The CRD may be installed in the same breath as the operator; kopf looks for it only once."""
    told = False
    while True:
        try:
            await server.request("GET", f"/apis/{COSYVOICE_SERVICE.api_version}")
            return
        except ApiError as error:
            if error.code not in (404, 503):
                raise
        if not told:
            logger.warning("waiting for the CRD %s.%s", COSYVOICE_SERVICE.plural, COSYVOICE_SERVICE.group)
            told = True
        await asyncio.sleep(CRD_POLL_SECONDS)


def _measured(reconciler: Reconciler) -> Callable[[ServiceKey], Awaitable[float | None]]:
    async def work(key: ServiceKey) -> float | None:
        started = asyncio.get_running_loop().time()
        result = "error"
        try:
            delay = await reconciler.reconcile(key)
            result = "ok"
            return delay
        finally:
            RECONCILES.labels(result).observe(asyncio.get_running_loop().time() - started)

    return work
