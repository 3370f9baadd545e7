"""The JSON of custom.metrics.k8s.io as Kubernetes clients read it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from cosyvoice_contract import SIGNAL_METRICS
from cosyvoice_operator.metricsapi.aggregate import Pool, Value

GROUP = "custom.metrics.k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Best first. The HPA of every supported Kubernetes reads v1beta2; v1beta1 is for older tools."""
RESOURCE = "deployments.apps"
"""What the metrics are of, in the form that the HPA's client makes of `apps/v1 Deployment`."""
METRICS = tuple(SIGNAL_METRICS.values())
LIST_KIND = "MetricValueList"

DISCOVERY_TYPE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

Json = dict[str, Any]


def resource_list(version: str) -> Json:
    """APIResourceList, what `GET /apis/GROUP/VERSION` answers."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{version}",
        "resources": [
            {
                "name": f"{RESOURCE}/{metric}",
                "singularName": "",
                "namespaced": True,
                "kind": LIST_KIND,
                "verbs": ["get"],
            }
            for metric in METRICS
        ],
    }


def group() -> Json:
    """APIGroup, what `GET /apis/GROUP` answers."""
    versions = [{"groupVersion": f"{GROUP}/{version}", "version": version} for version in VERSIONS]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": versions,
        "preferredVersion": versions[0],
    }


def group_list() -> Json:
    """APIGroupList, what `GET /apis` answers to a client that knows no aggregated discovery."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}


def discovery() -> Json:
    """APIGroupDiscoveryList: all of the above in the one answer that kube-apiserver asks for."""
    response_kind = {"group": "", "version": "", "kind": LIST_KIND}
    resource = {
        "resource": RESOURCE,
        "responseKind": {"group": "", "version": "", "kind": ""},
        "scope": "Namespaced",
        "singularResource": "",
        "verbs": [],
        "subresources": [
            {"subresource": metric, "responseKind": response_kind, "verbs": ["get"]} for metric in METRICS
        ],
    }
    versions = [{"version": served, "resources": [resource], "freshness": "Current"} for served in VERSIONS]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [{"metadata": {"name": GROUP}, "versions": versions}],
    }


def openapi_v2() -> Json:
    """OpenAPI 2.0 without a path: kube-apiserver asks every aggregated server and logs an error where there is none."""
    return {"swagger": "2.0", "info": {"title": GROUP, "version": VERSIONS[0]}, "paths": {}}


def openapi_v3() -> Json:
    """The index of OpenAPI 3 documents, of which there is none."""
    return {"paths": {}}


def value_list(version: str, metric: str, values: Iterable[tuple[Pool, Value]]) -> Json:
    """MetricValueList of `version`."""
    return {
        "kind": LIST_KIND,
        "apiVersion": f"{GROUP}/{version}",
        "metadata": {},
        "items": [_item(version, metric, pool, value) for pool, value in values],
    }


def status(code: HTTPStatus, reason: str, message: str) -> Json:
    """A `v1` Status: the only form of error that Kubernetes clients show to their users."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": int(code),
    }


def quantity(milli: int) -> str:
    """A Kubernetes quantity of thousandths, in the canonical form that Kubernetes itself would print."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def accepts_discovery(accept: str) -> bool:
    """Whether a client that sends this Accept header reads aggregated discovery (v2, stable since Kubernetes 1.30)."""
    return any(
        {"g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"} <= {part.strip() for part in offer.split(";")}
        for offer in accept.split(",")
    )


def _item(version: str, metric: str, pool: Pool, value: Value) -> Json:
    name: Json = {"metric": {"name": metric, "selector": None}}
    if version == "v1beta1":
        name = {"metricName": metric, "selector": None}
    return {
        "describedObject": {
            "kind": "Deployment",
            "apiVersion": "apps/v1",
            "namespace": pool.namespace,
            "name": pool.name,
        },
        **name,
        "timestamp": datetime.fromtimestamp(value.taken_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": quantity(value.milli),
    }
