"""What KEDA's `metrics-api` scaler reads: one pool's metric as JSON, or an error; missing is never zero.

On a port of its own: who calls here is known by a client certificate of our own CA, which must mean nothing where
kube-apiserver's front proxy speaks for users.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from cosyvoice_operator.metricsapi.aggregate import MetricUnavailable, pool_value
from cosyvoice_operator.metricsapi.server import Pools
from cosyvoice_operator.metricsapi.telemetry import Telemetry
from cosyvoice_operator.metricsapi.wire import METRICS

CLIENT_NAME: Final = "keda"
"""Common name of KEDA's client certificate."""

logger = logging.getLogger(__name__)


def application(pools: Pools, telemetry: Telemetry, max_age: float) -> web.Application:
    """`GET /v1/namespaces/NS/deployments/NAME/METRIC` -> `{METRIC: sum over the pool's workers}`, 1 = one at 100%."""

    async def metric(request: web.Request) -> web.Response:
        path = request.match_info
        if path["metric"] not in METRICS:
            return _failure(HTTPStatus.NOT_FOUND, f"there is no metric {path['metric']!r}; there are {METRICS}")
        try:
            pool = pools.find(path["namespace"], path["name"])
            if pool is None:
                return _failure(
                    HTTPStatus.NOT_FOUND,
                    f"namespace {path['namespace']} has no Deployment {path['name']} of a CosyVoiceService",
                )
            value = pool_value(pool, path["metric"], now=time.time(), max_age=max_age)
        except MetricUnavailable as error:
            return _failure(error.status, str(error))
        return web.json_response({path["metric"]: value.milli / 1000})

    @web.middleware
    async def counted(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            response = (
                await handler(request) if _is_keda(request) else _failure(HTTPStatus.FORBIDDEN, "you are not KEDA")
            )
        except web.HTTPException as error:
            response = _failure(HTTPStatus(error.status), f"{request.method} {request.path}: {error.reason}")
        telemetry.keda_requests.labels(str(response.status)).inc()
        return response

    app = web.Application(middlewares=[counted])
    app.router.add_get("/v1/namespaces/{namespace}/deployments/{name}/{metric}", metric)
    return app


def _is_keda(request: web.Request) -> bool:
    """TLS has verified that our CA signed the certificate."""
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return names == [CLIENT_NAME]


def _failure(code: HTTPStatus, message: str) -> web.Response:
    return web.Response(status=code, text=json.dumps({"error": message}), content_type="application/json")
