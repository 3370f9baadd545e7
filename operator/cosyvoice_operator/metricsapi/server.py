"""The HTTP surface of custom.metrics.k8s.io: routes, errors as `v1` Status, nothing else."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from cosyvoice_operator.cluster.api_server import ApiError
from cosyvoice_operator.metricsapi import wire
from cosyvoice_operator.metricsapi.aggregate import MetricUnavailable, Pool, Value, pool_value
from cosyvoice_operator.metricsapi.callers import Access, Authorizer, FrontProxy, Unauthenticated, authenticate
from cosyvoice_operator.metricsapi.telemetry import Telemetry

logger = logging.getLogger(__name__)

_REASONS = {
    HTTPStatus.UNAUTHORIZED: "Unauthorized",
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.NOT_FOUND: "NotFound",
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowed",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalError",
}


class Refusal(Exception):
    """A request that gets an error; the message goes to the caller."""

    def __init__(self, code: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.code = code


class Pools(Protocol):
    """What the server needs to know of the cluster."""

    def find(self, namespace: str, name: str) -> Pool | None:
        """The pool behind one Deployment, or None when there is no such Deployment of ours."""

    async def select(self, namespace: str, label_selector: str) -> list[Pool]:
        """The pools in a namespace whose Deployments match. Raises ApiError for a selector that does not parse."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a request is answered from. max_age: seconds after which a reading is stale."""

    pools: Pools
    front_proxy: Callable[[], FrontProxy]
    authorizer: Authorizer
    telemetry: Telemetry
    max_age: float


def application(service: Service) -> web.Application:
    """The HTTPS application; every path needs an authenticated and authorised caller."""

    async def discover(request: web.Request) -> web.Response:
        await _admit(service, request, Access(path=request.path))
        if request.path == "/apis" and wire.accepts_discovery(request.headers.get("Accept", "")):
            return web.Response(text=json.dumps(wire.discovery()), headers={"Content-Type": wire.DISCOVERY_TYPE})
        if request.path == "/apis":
            return web.json_response(wire.group_list())
        version = request.match_info.get("version")
        return web.json_response(wire.resource_list(version) if version else wire.group())

    async def openapi(request: web.Request) -> web.Response:
        await _admit(service, request, Access(path=request.path))
        return web.json_response(wire.openapi_v2() if request.path.endswith("v2") else wire.openapi_v3())

    async def metric(request: web.Request) -> web.Response:
        path = request.match_info
        version, namespace, name, metric = path["version"], path["namespace"], path["name"], path["metric"]
        await _admit(
            service, request, Access(request.path, namespace, wire.RESOURCE, name, metric, wire.GROUP, version)
        )
        if metric not in wire.METRICS:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no metric {metric!r}; there are {', '.join(wire.METRICS)}")
        if request.query.get("metricLabelSelector"):
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                f"{metric} has no labels, so the selector {request.query['metricLabelSelector']!r} matches nothing; "
                "leave it out",
            )
        if name == "*":
            pools = await service.pools.select(namespace, request.query.get("labelSelector", ""))
            values = _values(service, pools, metric)
        else:
            pool = service.pools.find(namespace, name)
            if pool is None:
                raise Refusal(
                    HTTPStatus.NOT_FOUND, f"namespace {namespace} has no Deployment {name} of a CosyVoiceService"
                )
            values = [(pool, _value(service, pool, metric))]
        return web.json_response(wire.value_list(version, metric, values))

    versions = f"{{version:{'|'.join(wire.VERSIONS)}}}"
    group = f"/apis/{wire.GROUP}"
    app = web.Application(middlewares=[_errors_as_status(service.telemetry)])
    app.router.add_get("/openapi/{version:v2|v3}", openapi)
    app.router.add_get("/apis", discover)
    app.router.add_get(group, discover)
    app.router.add_get(f"{group}/{versions}", discover)
    app.router.add_get(f"{group}/{versions}/namespaces/{{namespace}}/{wire.RESOURCE}/{{name}}/{{metric}}", metric)
    return app


async def _admit(service: Service, request: web.Request, access: Access) -> None:
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    try:
        caller = authenticate(service.front_proxy(), certificate, request.headers)
    except Unauthenticated as error:
        raise Refusal(HTTPStatus.UNAUTHORIZED, str(error)) from error
    try:
        allowed = await service.authorizer.allows(caller, access)
    except (ApiError, aiohttp.ClientError, TimeoutError) as error:
        raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"cannot ask for the rights of {caller.user}: {error}") from error
    if not allowed:
        raise Refusal(HTTPStatus.FORBIDDEN, f"user {caller.user!r} may not get {access.path}")


def _value(service: Service, pool: Pool, metric: str) -> Value:
    return pool_value(pool, metric, now=time.time(), max_age=service.max_age)


def _values(service: Service, pools: list[Pool], metric: str) -> list[tuple[Pool, Value]]:
    """The values of the pools that have one. When none has, the reason of the first is the answer."""
    values, missing = [], []
    for pool in pools:
        try:
            values.append((pool, _value(service, pool, metric)))
        except MetricUnavailable as error:
            missing.append(error)
    if missing and not values:
        raise missing[0]
    return values


def _errors_as_status(telemetry: Telemetry) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except Refusal as error:
            response = _failure(error.code, str(error))
        except MetricUnavailable as error:
            response = _failure(error.status, str(error))
        except ApiError as error:
            response = _failure(HTTPStatus(error.code), error.message)
        except web.HTTPException as error:
            response = _failure(HTTPStatus(error.status), f"{request.method} {request.path}: {error.reason}")
        except Exception:
            logger.exception("%s %s", request.method, request.path)
            response = _failure(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the log of the metrics API has it")
        telemetry.requests.labels(str(response.status)).inc()
        return response

    return middleware


def _failure(code: HTTPStatus, message: str) -> web.Response:
    return web.json_response(wire.status(code, _REASONS.get(code, "Unknown"), message), status=code)
