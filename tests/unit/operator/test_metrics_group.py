"""Who is said to serve the metrics API."""

from __future__ import annotations

from typing import Any

from cosyvoice_operator.runtime.metrics_group import other_owner


def apiservice(group: str = "custom.metrics.k8s.io", name: str = "adapter", **labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": {"group": group, "service": {"namespace": "mon", "name": name}}}


def test_what_the_metrics_api_registered_is_nobody_elses() -> None:
    ours = {"app.kubernetes.io/managed-by": "cosyvoice-operator"}
    assert other_owner([apiservice(**ours), apiservice("external.metrics.k8s.io"), {"metadata": {}, "spec": {}}]) == ""


def test_every_other_server_of_the_group_is_named_once() -> None:
    local = {"metadata": {}, "spec": {"group": "custom.metrics.k8s.io", "service": None}}
    found = [apiservice(name="b"), apiservice(name="a"), apiservice(name="b"), local]
    assert other_owner(found) == "Service mon/a and Service mon/b and kube-apiserver itself"
