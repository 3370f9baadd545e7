"""The operator process: watches, queue, heartbeat, probes, and how they live and end together."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import aiohttp
import kopf
from prometheus_client import REGISTRY

from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.apply import Applier
from cosyvoice_operator.cluster.events import Events
from cosyvoice_operator.cluster.kinds import COSYVOICE_SERVICE
from cosyvoice_operator.cluster.store import ServiceKey, Store
from cosyvoice_operator.runtime.capacities import Capacities
from cosyvoice_operator.runtime.departure import Departure
from cosyvoice_operator.runtime.http import serve
from cosyvoice_operator.runtime.leadership import Leadership
from cosyvoice_operator.runtime.metrics_group import MetricsGroup
from cosyvoice_operator.runtime.optional_kinds import OptionalKinds
from cosyvoice_operator.runtime.queue import WorkQueue
from cosyvoice_operator.runtime.reconciler import Reconciler
from cosyvoice_operator.runtime.telemetry import DEAF_SECONDS, LEADS, QUEUE_DEPTH, RECONCILES, ServicesCollector
from cosyvoice_operator.runtime.watches import Watches

WORKERS = 8
"""Services that are worked on at once; a pass spends its time waiting for the API server."""
CRD_POLL_SECONDS = 2.0

logger = logging.getLogger(__name__)


async def run(settings: Settings, own_namespace: str, identity: str, port: int) -> None:
    """Run until SIGTERM or SIGINT; `identity` is unique among the replicas.

    Raises what makes the process useless: it is then to be started again.
    """
    async with await ApiServer.connect() as server:
        await _wait_for_crd(server)
        store = Store()
        applier = Applier(server, store)
        capacities = Capacities(store)
        events = Events(server, identity)
        optional = OptionalKinds(server, store, applier, namespace=None)
        metrics_group = MetricsGroup(server, lambda: _add_all(store, queue))
        reconciler = Reconciler(
            settings,
            store,
            applier,
            events,
            measured=lambda: capacities.measured,
            served=lambda: optional.served,
            order_departure=Departure(server, store, lambda: capacities.work).order,
            metrics_owner=lambda: metrics_group.owner,
        )
        queue = WorkQueue[ServiceKey](_timed(reconciler))
        leadership = Leadership(server, own_namespace, "cosyvoice-operator", identity)
        watches = Watches(server, store, applier, queue, leadership)
        QUEUE_DEPTH.set_function(lambda: queue.depth)
        DEAF_SECONDS.set_function(lambda: leadership.deaf_for)
        REGISTRY.register(ServicesCollector(store))
        LEADS.set_function(lambda: leadership.leads)
        async with (
            serve(port, lambda: leadership.alive, watches.synced.is_set) as bound,
            asyncio.TaskGroup() as group,
        ):
            logger.info("probes and metrics on port %d", bound)
            tasks = [
                group.create_task(leadership.run()),
                group.create_task(capacities.run(queue.add)),
                group.create_task(events.run()),
                group.create_task(optional.run(queue.add)),
                group.create_task(metrics_group.run()),
                group.create_task(_work(watches, optional, store, queue, leadership)),
                group.create_task(_resync(store, queue, settings.resync_seconds)),
            ]
            # kopf ends for SIGTERM and SIGINT; it raises when a watch cannot go on.
            await kopf.operator(
                registry=watches.registry(), settings=watches.settings(), clusterwide=True, standalone=True
            )
            for task in tasks:
                task.cancel()
            await leadership.resign()


async def _work(
    watches: Watches, optional: OptionalKinds, store: Store, queue: WorkQueue[ServiceKey], leadership: Leadership
) -> None:
    await watches.synced.wait()
    await optional.synced.wait()
    logger.info("all kinds are listed")
    while True:
        await leadership.won()
        _add_all(store, queue)
        logger.info("%d services to look at", queue.depth)
        work, lost = asyncio.create_task(queue.run(WORKERS)), asyncio.create_task(leadership.lost())
        try:
            done, _ = await asyncio.wait([work, lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            lost.cancel()
        if work in done:
            work.result()  # it never ends but by an error


def _add_all(store: Store, queue: WorkQueue[ServiceKey]) -> None:
    for service in store.services():
        queue.add(service)


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
            if error.code not in (404, 429, 503):
                raise
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("the API server does not answer: %s", error or type(error).__name__)
        if not told:
            logger.warning("waiting for the CRD %s.%s", COSYVOICE_SERVICE.plural, COSYVOICE_SERVICE.group)
            told = True
        await asyncio.sleep(CRD_POLL_SECONDS)


def _timed(reconciler: Reconciler) -> Callable[[ServiceKey], Awaitable[float | None]]:
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
