"""What a mistake is answered with, and that what runs keeps running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cosyvoice_operator.plan import child_name
from tests.controlplane.operator_harness import ROOT, Namespace, OperatorProcess, eventually, quiet, service

pytestmark = pytest.mark.controlplane

CHILD = child_name("hello", "cpu")
POOL = {"name": "cpu", "card": "CPU", "workers": {"max": 2}}
BUILT_IN = {"builtIn": {"name": "DemoEnglish"}}

REFUSED_AT_APPLY: dict[str, tuple[dict[str, Any], str]] = {
    "two sources": (
        {"model": {"name": "m", "source": {**BUILT_IN, "random": {}}}},
        "exactly one of persistentVolumeClaim, builtIn, random is required",
    ),
    "no source": ({"model": {"name": "m", "source": {}}}, "exactly one of persistentVolumeClaim, builtIn, random"),
    "min over max": ({"pools": [{**POOL, "workers": {"min": 3, "max": 2}}]}, "min must not be greater than max"),
    "streams and workers": (
        {"pools": [{**POOL, "concurrency": {"max": 2}}]},
        "exactly one of concurrency, workers is required",
    ),
    "neither": ({"pools": [{"name": "cpu", "card": "CPU"}]}, "exactly one of concurrency, workers is required"),
    "misspelt field": ({"pools": [{**POOL, "resorces": {}}]}, 'unknown field "spec.pools[0].resorces"'),
    "two pools of one name": ({"pools": [POOL, POOL]}, "Duplicate value"),
    "no pool": ({"pools": []}, "spec.pools"),
    "long pool name": ({"pools": [{**POOL, "name": "p" * 21}]}, "spec.pools[0].name"),
    "unknown provider": ({"autoscaling": {"provider": "Magic"}}, "spec.autoscaling.provider"),
    "bad quantity": ({"pools": [{**POOL, "resources": {"requests": {"cpu": "four"}}}]}, "spec.pools[0].resources"),
    "no such port": ({"service": {"port": 0}}, "spec.service.port"),
    "load balancer without auth": ({"service": {"type": "LoadBalancer"}}, "spec.auth is required"),
    "ingress without auth": ({"service": {"ingress": {"host": "speech.example"}}}, "spec.auth is required"),
    "route without auth": ({"service": {"httpRoute": {"parentRefs": [{"name": "gateway"}]}}}, "spec.auth is required"),
    "keys without a secret": ({"auth": {"mode": "APIKeys"}}, "apiKeysSecretRef is required with mode APIKeys"),
    "source ranges without a load balancer": (
        {"service": {"loadBalancerSourceRanges": ["203.0.113.0/24"]}},
        "loadBalancerClass and loadBalancerSourceRanges need type LoadBalancer",
    ),
    "node port without nodes": ({"service": {"nodePort": 30080}}, "nodePort needs type NodePort or LoadBalancer"),
}


@pytest.fixture
def home(operator: OperatorProcess, namespace: str) -> Namespace:
    return Namespace(operator.plane, namespace)


@pytest.mark.parametrize(("spec", "message"), REFUSED_AT_APPLY.values(), ids=REFUSED_AT_APPLY.keys())
def test_kubectl_apply_refuses(home: Namespace, spec: dict[str, Any], message: str) -> None:
    answer = home.apply(service(**spec), check=False)
    assert message in answer
    assert home.kubectl("get", "cosyvoiceservices", "--output=name") == ""


@pytest.mark.parametrize("name", ["n" * 41, "1hello", "hel.lo"])
def test_kubectl_apply_refuses_a_name_that_no_service_can_bear(home: Namespace, name: str) -> None:
    assert "metadata.name must be at most 40 characters" in home.apply(service(name), check=False)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_kubectl_apply_takes_every_example(home: Namespace, example: Path) -> None:
    home.kubectl("apply", "--dry-run=server", "-f", str(example))


def test_a_spec_that_cannot_be_carried_out_says_so_and_changes_nothing(
    operator: OperatorProcess, home: Namespace
) -> None:
    home.apply(service())
    home.converged("hello")
    before = home.get("deployment", CHILD)
    with quiet(operator, home):
        home.apply(service(pools=[{**POOL, "card": "V100"}], drain={"timeoutSeconds": 7}))
        home.converged("hello")
    accepted = home.condition("hello", "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "UnknownCard")
    assert "spec.pools[0].card: 'V100' is not in the card catalogue; use one of A10, A100" in accepted["message"]
    assert home.condition("hello", "Ready")["status"] == "False"
    assert home.get("deployment", CHILD)["spec"] == before["spec"]
    assert len(home.list("hpa")) == 1
    events = home.kubectl("get", "events", "--field-selector=reason=UnknownCard")
    assert "V100" in events

    home.apply(service())
    eventually(lambda: accepted_is(home, "True"))


def accepted_is(home: Namespace, status: str) -> None:
    assert home.condition("hello", "Accepted")["status"] == status


@pytest.mark.parametrize(
    ("kind", "manifest"),
    [
        (
            "service",
            {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}], "selector": {"app": "mine"}}},
        ),
        ("service", {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 9999}]}}),
        (
            "deployment",
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "spec": {
                    "replicas": 0,
                    "selector": {"matchLabels": {"app": "mine"}},
                    "template": {
                        "metadata": {"labels": {"app": "mine"}},
                        "spec": {"containers": [{"name": "worker", "image": "example.invalid/mine"}]},
                    },
                },
            },
        ),
    ],
    ids=["service", "service without selector", "deployment"],
)
def test_an_object_of_the_users_is_never_taken_over(
    operator: OperatorProcess, home: Namespace, kind: str, manifest: dict[str, Any]
) -> None:
    name = "hello" if kind == "service" else CHILD
    home.apply({**manifest, "metadata": {"name": name}})
    before = home.get(kind, name)
    home.apply(service())

    def told() -> None:
        accepted = home.condition("hello", "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", "NameTaken")
        assert f"{home.name}/{name} exists and is not the operator's" in accepted["message"]

    eventually(told)
    after = home.get(kind, name)
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("labels") == before["metadata"].get("labels")
    assert "ownerReferences" not in after["metadata"]
    home.get("pdb", CHILD)  # the other children are there all the same

    home.kubectl("delete", kind, name)
    eventually(lambda: accepted_is(home, "True"), timeout=60)


def test_one_bad_service_does_not_hold_up_the_others(operator: OperatorProcess, home: Namespace) -> None:
    for number in range(5):
        home.apply(service(f"bad-{number}", pools=[{**POOL, "card": "V100"}]))
    home.apply(service())
    home.converged("hello")
    assert home.condition("hello", "Accepted")["status"] == "True"


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        ({"prioritiClassName": "gpu"}, "prioritiClassName"),
        ({"containers": [{"name": "worker", "ports": [{"name": "x"}]}]}, "containerPort"),
        ({"containers": [{"name": "sidecar"}]}, "image"),
        ({"containers": [{"name": "worker", "env": [{"name": {"a": "b"}}]}]}, "name"),
    ],
    ids=["misspelt", "port without number", "container without image", "variable whose name is a mapping"],
)
def test_a_pod_template_that_the_api_server_refuses_is_shown(
    operator: OperatorProcess, home: Namespace, pod: dict[str, Any], message: str
) -> None:
    home.apply(service(podTemplate={"spec": pod}))

    def shown() -> None:
        accepted = home.condition("hello", "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", "Refused")
        assert message in accepted["message"]

    eventually(shown)
    home.apply(service(podTemplate={"spec": {"priorityClassName": "system-node-critical"}}))
    eventually(lambda: accepted_is(home, "True"), timeout=60)


def test_a_pod_template_that_is_no_pod_is_refused_with_its_field(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service(podTemplate={"spec": {"containers": 5}}))
    home.converged("hello")
    accepted = home.condition("hello", "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert "spec.podTemplate.spec: containers is 5; write a list" in accepted["message"]


def test_a_pool_whose_replacement_is_refused_serves_on(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    home.get("deployment", CHILD)
    limited = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    home.apply({**limited, "spec": {"hard": {"count/deployments.apps": "1"}}})
    eventually(lambda: quota_is_used(home))
    home.apply(service(pools=[{**POOL, "name": "renamed"}]))
    eventually(lambda: accepted_is(home, "False"))
    assert "exceeded quota: few" in home.condition("hello", "Accepted")["message"]
    for kind in ("deployment", "hpa", "pdb"):
        assert "deletionTimestamp" not in home.get(kind, CHILD)["metadata"]

    home.kubectl("delete", "resourcequota", "few")
    eventually(lambda: deployments_are(home, [child_name("hello", "renamed")]), timeout=60)


def quota_is_used(home: Namespace) -> None:
    used = home.kubectl("get", "resourcequota", "few", "--output=jsonpath={.status.used}")
    assert used == '{"count/deployments.apps":"1"}'


def deployments_are(home: Namespace, names: list[str]) -> None:
    assert [item["metadata"]["name"] for item in home.list("deployment")] == names


def test_what_the_api_server_refuses_is_shown(operator: OperatorProcess, home: Namespace) -> None:
    limited = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    home.apply({**limited, "spec": {"hard": {"count/deployments.apps": "0"}}})
    eventually(lambda: home.kubectl("get", "resourcequota", "few", "--output=jsonpath={.status.hard}"))
    home.apply(service())

    def shown() -> None:
        accepted = home.condition("hello", "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", "Refused")
        assert "exceeded quota: few" in accepted["message"]

    eventually(shown)
    home.kubectl("delete", "resourcequota", "few")
    eventually(lambda: accepted_is(home, "True"), timeout=60)
