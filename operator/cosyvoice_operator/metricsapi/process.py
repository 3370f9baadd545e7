"""The process: puts the parts together, starts them in order, and says whether they work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from urllib.parse import quote

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cosyvoice_contract import LABEL_MANAGED_BY, MANAGED_BY, WORKER_PORT
from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.mirror import SILENCE_SECONDS, Mirror
from cosyvoice_operator.metricsapi import keda, registration, server
from cosyvoice_operator.metricsapi.aggregate import MetricUnavailable, Pool, Reading
from cosyvoice_operator.metricsapi.callers import Authorizer, FrontProxy, read_front_proxy
from cosyvoice_operator.metricsapi.certificate import ServingIdentity, server_context
from cosyvoice_operator.metricsapi.keda_secret import KedaSecret
from cosyvoice_operator.metricsapi.listener import Listener
from cosyvoice_operator.metricsapi.pools import (
    deployment_key,
    pod_key,
    pods_key,
    read_pool,
    slim_deployment,
    slim_pod,
)
from cosyvoice_operator.metricsapi.reach import Unreachable, reach
from cosyvoice_operator.metricsapi.registration import Backend, Registrar
from cosyvoice_operator.metricsapi.scrape import Scraper
from cosyvoice_operator.metricsapi.serving_secret import ServingSecret
from cosyvoice_operator.metricsapi.settings import Settings
from cosyvoice_operator.metricsapi.telemetry import Telemetry

DEPLOYMENTS = "/apis/apps/v1/deployments"
RECHECK_SECONDS = 30
"""The certificate's age and the registration are looked at this often even when no watch reports a change."""

logger = logging.getLogger(__name__)


class ClusterPools:
    """The pools as the watches (Mirrors by `deployment_key` and `pod_key`) and the last scrape show them.

    Raises MetricUnavailable when the API server has told nothing for `max_silence` seconds: a pool may have grown
    meanwhile, and the sum over the workers that are known would then look like a load that leaves.
    """

    def __init__(
        self,
        api: ApiServer,
        deployments: Mirror,
        pods: Mirror,
        readings: Callable[[], Mapping[str, Reading]],
        max_silence: float = SILENCE_SECONDS + 30,
    ) -> None:
        self._api = api
        self._deployments = deployments
        self._pods = pods
        self._readings = readings
        self._max_silence = max_silence

    def find(self, namespace: str, name: str) -> Pool | None:
        silence = max(self._deployments.silent_seconds, self._pods.silent_seconds)
        if silence > self._max_silence:
            raise MetricUnavailable(
                f"metrics API has heard nothing from the API server for {self._max_silence:.0f} s and cannot know "
                "which workers there are"
            )
        for deployment in self._deployments.of((namespace, name)):
            return read_pool(deployment, self._pods.of(pods_key(deployment)), self._readings())
        return None

    async def select(self, namespace: str, label_selector: str) -> list[Pool]:
        # The API server knows the selector language; this form is for people and rare.
        listing = await self._api.request(
            "GET",
            f"/apis/apps/v1/namespaces/{quote(namespace, safe='')}/deployments",
            query={"labelSelector": label_selector},
        )
        found = (self.find(namespace, item["metadata"]["name"]) for item in listing["items"])
        return [pool for pool in found if pool is not None]


class Process:
    """One replica of the metrics API."""

    def __init__(self, settings: Settings, api: ApiServer) -> None:
        self._settings = settings
        self._api = api
        self._telemetry = Telemetry()
        self._pods_changed = asyncio.Event()
        self._tls_changed = asyncio.Event()
        self._registration_changed = asyncio.Event()
        ours = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
        self._pods = Mirror(
            api, "/api/v1/pods", label_selector=ours, on_change=self._pods_changed.set, slim=slim_pod, key=pod_key
        )
        self._deployments = Mirror(api, DEPLOYMENTS, label_selector=ours, slim=slim_deployment, key=deployment_key)
        self._secret = Mirror(
            api,
            f"/api/v1/namespaces/{settings.namespace}/secrets",
            field_selector=f"metadata.name={settings.secret}",
            on_change=self._tls_changed.set,
        )
        self._authentication = Mirror(
            api,
            "/api/v1/namespaces/kube-system/configmaps",
            field_selector="metadata.name=extension-apiserver-authentication",
            on_change=self._tls_changed.set,
        )
        self._apiservices = Mirror(api, registration.PATH, on_change=self._registration_changed.set)
        self._own_deployment = Mirror(
            api,
            f"/apis/apps/v1/namespaces/{settings.namespace}/deployments",
            field_selector=f"metadata.name={settings.deployment}",
            on_change=self._registration_changed.set,
        )
        self._mirrors = [self._pods, self._deployments, self._secret, self._authentication, self._apiservices]
        if settings.deployment:
            self._mirrors.append(self._own_deployment)
        self._keda_changed = asyncio.Event()
        keda_namespace, _, keda_name = settings.keda_secret.partition("/")
        self._keda_secret_found = Mirror(
            api,
            f"/api/v1/namespaces/{keda_namespace}/secrets",
            field_selector=f"metadata.name={keda_name}",
            on_change=self._keda_changed.set,
        )
        self._scraper = Scraper(
            self._pods.objects.values,
            self._pods_changed,
            self._telemetry,
            port=WORKER_PORT,
            interval=settings.scrape_interval,
            timeout=settings.scrape_timeout,
            concurrency=settings.scrape_concurrency,
        )
        self._telemetry.watch_readings(self._scraper.readings_of_all)
        self._serving = ServingSecret(api, settings.namespace, settings.secret, settings.dns_names)
        self._identity: ServingIdentity | None = None
        self._front_proxy: FrontProxy | None = None
        pools = ClusterPools(api, self._deployments, self._pods, lambda: self._scraper.readings)
        self._keda_secret = KedaSecret(api, keda_namespace, keda_name)
        self._keda_identity: ServingIdentity | None = None
        self._keda_listener = Listener(
            keda.application(pools, self._telemetry, settings.max_age), settings.host, settings.keda_port
        )
        self._listener = Listener(
            server.application(
                server.Service(
                    pools=pools,
                    front_proxy=self._trusted,
                    authorizer=Authorizer(api),
                    telemetry=self._telemetry,
                    max_age=settings.max_age,
                )
            ),
            settings.host,
            settings.port,
        )
        self._registrar = Registrar(
            api,
            self._telemetry,
            Backend(settings.namespace, settings.service, settings.service_port),
            settings.cluster_role,
            existing=self._apiservices.objects.values,
            ca_bundle=lambda: self._current().ca_bundle,
            reach=self._reach_itself,
            leaving=self._leaving,
        )
        self._listening = asyncio.Event()
        self._ready = False

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. A part that fails for good ends the process; the kubelet starts a new one."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        health = await self._serve_health()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(mirror.run()) for mirror in self._mirrors]
                if self._settings.keda_secret:
                    tasks.append(group.create_task(self._keda_secret_found.run()))
                tasks.append(group.create_task(self._serve()))
                await stopped.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await self._listener.close()
            await self._keda_listener.close()
            await health.cleanup()

    async def _serve(self) -> None:
        for mirror in self._mirrors:
            await mirror.synced.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._scraper.run())
            group.create_task(_keep("serving certificate", self._tls_changed, self._reconcile_tls))
            # Nobody is sent here before there is something to be told.
            await self._scraper.first_round.wait()
            await self._listening.wait()
            if self._settings.keda_secret:
                group.create_task(_keep("KEDA", self._keda_changed, self._reconcile_keda))
            self._ready = True
            logger.info("ready on port %d", self._settings.port)
            group.create_task(_keep("registration", self._registration_changed, self._registrar.reconcile))

    async def _reconcile_tls(self) -> None:
        """Serve under the current certificate and trust the current front-proxy CA."""
        try:
            identity = await self._serving.identity(self._secret.objects.values())
        except (ApiError, aiohttp.ClientError, TimeoutError):
            if self._identity is None:
                raise
            logger.exception("the serving certificate cannot be looked after; serving with the one at hand")
            identity = self._identity
        if identity is None:
            return
        data = next((item.get("data") or {} for item in self._authentication.objects.values()), {})
        front_proxy = read_front_proxy(data)
        before = (self._identity, self._front_proxy and self._front_proxy.client_ca)
        if (identity, front_proxy.client_ca) != before:
            await self._listener.serve(server_context(identity, front_proxy.client_ca))
            self._telemetry.certificate_expiry.set(identity.expires.timestamp())
            self._registration_changed.set()
            self._keda_changed.set()
        self._identity, self._front_proxy = identity, front_proxy
        self._listening.set()

    async def _reconcile_keda(self) -> None:
        """Serve KEDA under the current certificate, and give it one of its own that the same CA signed."""
        identity = self._current()
        if identity != self._keda_identity:
            await self._keda_listener.serve(server_context(identity, identity.ca_bundle.decode(), required=True))
            self._keda_identity = identity
        if not self._keda_secret_found.synced.is_set():
            return  # the watch comes back here; that KEDA's namespace is closed to us must not keep the HPAs waiting
        await self._keda_secret.keep(self._keda_secret_found.objects.values(), identity)

    def _trusted(self) -> FrontProxy:
        assert self._front_proxy is not None, "nothing listens before it is known"
        return self._front_proxy

    def _current(self) -> ServingIdentity:
        assert self._identity is not None, "nothing is registered before it is there"
        return self._identity

    async def _reach_itself(self) -> None:
        await reach(self._settings.own_url, self._settings.dns_names[0], self._current().ca_bundle)

    def _leaving(self) -> bool:
        if not self._settings.deployment:
            return False
        found = list(self._own_deployment.objects.values())
        return not found or bool(found[0]["metadata"].get("deletionTimestamp"))

    async def _serve_health(self) -> web.AppRunner:
        async def healthz(_: web.Request) -> web.Response:
            return web.Response(text="ok")

        async def readyz(_: web.Request) -> web.Response:
            if not self._ready:
                waiting = "watches, certificate or first scrape not there yet"
                return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=waiting)
            return web.Response(text="ok")

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(
                body=generate_latest(self._telemetry.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
            )

        app = web.Application()
        app.router.add_get("/healthz", healthz)
        app.router.add_get("/readyz", readyz)
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._settings.host, self._settings.health_port).start()
        return runner


async def _keep(what: str, changed: asyncio.Event, reconcile: Callable[[], Awaitable[None]]) -> None:
    """Run `reconcile` after every change and every RECHECK_SECONDS; what fails is logged and tried again soon."""
    while True:
        changed.clear()
        wait: float = RECHECK_SECONDS
        try:
            await reconcile()
        except (ApiError, Unreachable, aiohttp.ClientError, TimeoutError, ValueError, ssl.SSLError, OSError) as error:
            logger.error("%s: %s", what, str(error) or type(error).__name__)
            wait = 2
            await asyncio.sleep(0.5)  # a change that fails again and again must not spin
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), wait)
