"""Which pods count as workers of which Deployment."""

from __future__ import annotations

from typing import Any

import pytest

from cosyvoice_contract import ANNOTATION_SIGNAL_TARGETS, LABEL_POOL, LABEL_SERVICE
from cosyvoice_operator.metricsapi.aggregate import Reading
from cosyvoice_operator.metricsapi.pools import (
    counts,
    pod_key,
    pods_key,
    read_pool,
    selects,
    signal_targets,
    slim_deployment,
    slim_pod,
)


def pod(name: str = "w-0", **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "speech", "uid": f"uid-{name}", "labels": {"pool": "t4", "other": "x"}},
        "status": {
            "phase": "Running",
            "podIP": "10.9.0.7",
            "containerStatuses": [{"name": "sidecar", "started": True}, {"name": "worker", "started": True}],
        },
    }
    made["metadata"] |= changes.pop("metadata", {})
    made["status"] |= changes
    return made


def deployment(**changes: Any) -> dict[str, Any]:
    meta = {
        "name": "narrator-t4",
        "namespace": "speech",
        "annotations": {ANNOTATION_SIGNAL_TARGETS: '{"gpu_load": 80, "gpu_memory": 75}'},
    }
    return {
        "metadata": meta | changes,
        "spec": {"replicas": 3, "selector": {"matchLabels": {"pool": "t4"}}},
    }


def test_a_started_pod_counts_whether_it_is_ready_or_not() -> None:
    assert counts(pod(conditions=[{"type": "Ready", "status": "False"}]))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"containerStatuses": [{"name": "worker", "started": False}]}, id="still loading"),
        pytest.param({"containerStatuses": [{"name": "sidecar", "started": True}]}, id="only a sidecar started"),
        pytest.param({"containerStatuses": None}, id="not yet seen by a kubelet"),
        pytest.param({"podIP": None}, id="no address"),
        pytest.param({"phase": "Pending"}, id="pending"),
        pytest.param({"phase": "Failed"}, id="evicted"),
        pytest.param({"metadata": {"deletionTimestamp": "2026-12-01T10:00:00Z"}}, id="terminating"),
    ],
)
def test_a_pod_does_not_count_while(changed: dict[str, Any]) -> None:
    assert not counts(pod(**changed))


def test_a_pod_belongs_to_the_deployment_whose_labels_it_bears_in_its_namespace() -> None:
    assert selects(deployment(), pod())
    assert not selects(deployment(), pod(metadata={"labels": {"pool": "a100"}}))
    assert not selects(deployment(namespace="elsewhere"), pod())


def test_a_selector_without_labels_selects_nothing() -> None:
    everything = deployment()
    everything["spec"]["selector"] = {}
    assert not selects(everything, pod())


def test_a_pool_is_put_together_from_the_deployment_its_pods_and_their_readings() -> None:
    reading = Reading(1.0, {"gpu_load": 0.5})
    loading = pod("w-1", containerStatuses=[{"name": "worker", "started": False}])
    found = read_pool(deployment(), [pod(), loading, pod("w-2")], {"uid-w-0": reading})
    assert (found.namespace, found.name, found.wanted) == ("speech", "narrator-t4", 3)
    assert found.targets == {"gpu_load": 0.8, "gpu_memory": 0.75}
    assert {worker.name: worker.reading for worker in found.workers} == {"w-0": reading, "w-2": None}


@pytest.mark.parametrize("text", ["", "[]", "not json", '{"gpu_load": "80"}', '{"gpu_load": 0}', '{"gpu_load": NaN}'])
def test_targets_that_do_not_parse_are_no_targets(text: str) -> None:
    assert signal_targets({ANNOTATION_SIGNAL_TARGETS: text}) == {}


def test_a_deployment_without_the_annotation_has_no_targets() -> None:
    assert signal_targets({}) == {}


def test_what_is_kept_of_pod_and_deployment_says_as_much_of_the_pool() -> None:
    whole, pods = deployment(), [pod(), pod("w-1", phase="Failed"), pod("w-2", metadata={"deletionTimestamp": "x"})]
    whole["spec"]["template"] = {"spec": {}}
    pods[0]["spec"] = {"containers": []}
    slim, slim_pods = slim_deployment(whole), [slim_pod(item) for item in pods]
    assert "template" not in slim["spec"]
    assert "spec" not in slim_pods[0]
    assert read_pool(slim, slim_pods, {}) == read_pool(whole, pods, {})


def test_pods_are_looked_for_where_their_deployment_selects() -> None:
    labels = {LABEL_SERVICE: "narrator", LABEL_POOL: "t4"}
    ours = deployment()
    ours["spec"]["selector"] = {"matchLabels": labels}
    assert pod_key(pod(metadata={"labels": {**labels, "other": "x"}})) == pods_key(ours)
    assert pod_key(pod(metadata={"labels": {**labels, LABEL_POOL: "a100"}})) != pods_key(ours)
    assert pod_key(pod(metadata={"labels": labels, "namespace": "elsewhere"})) != pods_key(ours)
