"""The JSON that Kubernetes clients get; that they accept it is shown against a real API server elsewhere."""

from __future__ import annotations

import pytest

from cosyvoice_operator.metricsapi import wire
from cosyvoice_operator.metricsapi.aggregate import Pool, Value

POOL = Pool("speech", "narrator-t4", 1, {}, ())
VALUE = Value(1700, 1_796_119_200.9)


@pytest.mark.parametrize(("milli", "written"), [(0, "0"), (1, "1m"), (1700, "1700m"), (2000, "2")])
def test_quantities_are_in_canonical_form(milli: int, written: str) -> None:
    assert wire.quantity(milli) == written


def test_v1beta2_names_the_metric_in_an_object() -> None:
    (item,) = wire.value_list("v1beta2", "gpu_load", [(POOL, VALUE)])["items"]
    assert item == {
        "describedObject": {
            "kind": "Deployment",
            "apiVersion": "apps/v1",
            "namespace": "speech",
            "name": "narrator-t4",
        },
        "metric": {"name": "gpu_load", "selector": None},
        "timestamp": "2026-12-01T10:00:00Z",
        "value": "1700m",
    }


def test_v1beta1_names_the_metric_in_a_field() -> None:
    (item,) = wire.value_list("v1beta1", "gpu_load", [(POOL, VALUE)])["items"]
    assert (item["metricName"], "metric" in item) == ("gpu_load", False)


def test_discovery_lists_every_metric_in_both_forms() -> None:
    old = {resource["name"] for resource in wire.resource_list("v1beta2")["resources"]}
    (version, _) = wire.discovery()["items"][0]["versions"]
    new = {f"{r['resource']}/{s['subresource']}" for r in version["resources"] for s in r["subresources"]}
    expected = {f"deployments.apps/{metric}" for metric in ("gpu_load", "gpu_utilization", "gpu_memory")}
    assert old == new == expected


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (f"{wire.DISCOVERY_TYPE},application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", True),
        ("application/json; g=apidiscovery.k8s.io; v=v2; as=APIGroupDiscoveryList, application/json", True),
        ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", False),
        ("application/json", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_aggregated_discovery_is_given_to_those_who_read_it(accept: str, expected: bool) -> None:
    assert wire.accepts_discovery(accept) is expected
