"""Beginnings and ends: of a service, of its namespace, of the operator itself."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cosyvoice_operator.plan import child_name
from tests.controlplane.operator_harness import Namespace, OperatorProcess, eventually, quiet, service

pytestmark = pytest.mark.controlplane

CHILD = child_name("hello", "cpu")
KINDS = ("deployment", "service", "hpa", "pdb", "pods")


@pytest.fixture
def home(operator: OperatorProcess, namespace: str) -> Namespace:
    return Namespace(operator.plane, namespace)


def gone(home: Namespace) -> None:
    assert {kind: home.list(kind) for kind in KINDS} == {kind: [] for kind in KINDS}


def test_children_go_with_their_service(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    home.kubectl("delete", "cosyvoiceservice", "hello", "--timeout=10s")
    eventually(lambda: gone(home), timeout=120)  # the garbage collector looks for new kinds of owners every 30 s
    with quiet(operator, home):
        pass


def test_a_service_that_is_deleted_and_made_again_at_once_comes_up(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    home.kubectl("delete", "cosyvoiceservice", "hello", "--wait=false")
    home.apply(service())

    def owned_by_the_new() -> None:
        uid = home.get("cosyvoiceservice", "hello")["metadata"]["uid"]
        for kind, name in (("deployment", CHILD), ("service", "hello"), ("hpa", CHILD), ("pdb", CHILD)):
            metadata = home.get(kind, name)["metadata"]
            assert [owner["uid"] for owner in metadata["ownerReferences"]] == [uid]
            assert "deletionTimestamp" not in metadata
        assert home.condition("hello", "Accepted")["status"] == "True"

    eventually(owned_by_the_new, timeout=60)


def test_a_namespace_with_services_is_deleted_without_trouble(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    home.plane.run_kubectl("delete", "namespace", home.name, "--timeout=60s")
    with quiet(operator, home):
        pass


def test_a_restart_writes_nothing_that_is_there_already(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    with quiet(operator, home):
        pass
    versions = {kind: [item["metadata"]["resourceVersion"] for item in home.list(kind)] for kind in KINDS}
    assert operator.stop() == 0
    operator.start()
    with quiet(operator, home):
        pass
    assert {kind: [item["metadata"]["resourceVersion"] for item in home.list(kind)] for kind in KINDS} == versions


def test_what_changed_while_it_was_away_is_made_good(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    operator.stop()
    home.kubectl("set", "image", f"deployment/{CHILD}", "worker=example.invalid/other:1")
    home.kubectl("delete", "pdb", CHILD)
    home.apply(service(drain={"timeoutSeconds": 7}))
    operator.start()

    def made_good() -> None:
        pod = home.get("deployment", CHILD)["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == "cosyvoice-worker:dev-cpu"
        assert pod["terminationGracePeriodSeconds"] == 22
        home.get("pdb", CHILD)

    eventually(made_good)


def test_without_an_operator_services_and_namespaces_can_be_deleted(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    operator.stop()
    try:
        home.kubectl("delete", "cosyvoiceservice", "hello", "--timeout=10s")
        eventually(lambda: gone(home))
        home.plane.run_kubectl("delete", "namespace", home.name, "--timeout=60s")
    finally:
        operator.start()


def test_a_restarted_api_server_is_ridden_out(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    home.plane.restart_apiserver(down_seconds=2)
    home.apply(service(drain={"timeoutSeconds": 7}))

    def caught_up() -> None:
        pod = home.get("deployment", CHILD)["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == 22

    eventually(caught_up, timeout=120)
    assert operator.get("/healthz")[0] == 200


def test_its_probes_and_its_metrics_answer(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    assert operator.get("/readyz") == (200, "ok")
    assert operator.get("/healthz") == (200, "ok")
    status, metrics = operator.get("/metrics")
    assert status == 200
    for name in (
        'reconcile_seconds_count{result="ok"}',
        "queue_depth",
        'apply_total{changed="true",kind="Deployment"}',
    ):
        assert f"cosyvoice_operator_{name}" in metrics
    samples = {
        (sample.name, sample.labels.get("type") or sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.labels.get("namespace") == home.name
    }
    assert samples["cosyvoice_service_condition", "Ready"] == 1
    assert samples["cosyvoice_service_workers", "max"] == 3
