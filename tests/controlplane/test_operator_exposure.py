"""How a service is reached from outside, and who may speak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cosyvoice_operator.plan import child_name
from tests.cluster.control_plane import ControlPlane
from tests.controlplane.operator_harness import Namespace, OperatorProcess, eventually, quiet, service

pytestmark = pytest.mark.controlplane

CHILD = child_name("hello", "cpu")
KEYS = {"mode": "APIKeys", "apiKeysSecretRef": {"name": "speech-keys"}}
EVERYBODY = {"mode": "None"}
ROUTE = {"httpRoute": {"parentRefs": [{"name": "gateway"}], "hostnames": ["speech.example"]}}


@pytest.fixture
def home(operator: OperatorProcess, namespace: str) -> Namespace:
    return Namespace(operator.plane, namespace)


def custom_resource(group: str, kind: str, plural: str) -> dict[str, Any]:
    """A CRD of the group's own names that takes any spec."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # Without it the group, which is one of Kubernetes' own projects, is refused.
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/1923"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


GATEWAY_API = custom_resource("gateway.networking.k8s.io", "HTTPRoute", "httproutes")


@pytest.fixture
def without_gateway_api(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    yield control_plane
    control_plane.run_kubectl("delete", "--ignore-not-found", "crd/httproutes.gateway.networking.k8s.io")


def accepted(home: Namespace) -> tuple[str, str]:
    condition = home.condition("hello", "Accepted")
    return condition["status"], condition["reason"]


def is_accepted(home: Namespace) -> None:
    assert accepted(home) == ("True", "Accepted")


def test_a_service_leaves_the_cluster_and_comes_back(operator: OperatorProcess, home: Namespace) -> None:
    ingress = {"className": "nginx", "host": "speech.example", "tlsSecretName": "speech-tls"}
    with quiet(operator, home):
        home.apply(service(service={"type": "NodePort", "ingress": ingress}, auth=EVERYBODY))
        home.converged("hello")
        made = home.get("ingress", "hello")
        assert made["spec"]["rules"][0]["host"] == "speech.example"
        assert made["spec"]["tls"] == [{"hosts": ["speech.example"], "secretName": "speech-tls"}]
        assert made["metadata"]["ownerReferences"][0]["name"] == "hello"
        port = home.get("service", "hello")["spec"]["ports"][0]
        assert port["nodePort"] >= 30000
    home.apply(service())

    def back() -> None:
        assert home.list("ingress") == []
        assert home.get("service", "hello")["spec"]["type"] == "ClusterIP"

    eventually(back)


def test_an_ingress_of_the_users_is_never_taken_over(operator: OperatorProcess, home: Namespace) -> None:
    """Not even one that says the same."""
    backend = {"service": {"name": "hello", "port": {"name": "http"}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    spec = {"rules": [{"host": "speech.example", "http": {"paths": paths}}]}
    home.apply({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "hello"}, "spec": spec})
    home.apply(service(service={"ingress": {"host": "speech.example"}}, auth=EVERYBODY))
    home.converged("hello")
    assert accepted(home) == ("False", "NameTaken")
    assert "ownerReferences" not in home.get("ingress", "hello")["metadata"]


def test_a_route_waits_for_the_gateway_api_and_goes_with_it(
    operator: OperatorProcess, home: Namespace, without_gateway_api: ControlPlane
) -> None:
    with quiet(operator, home):
        home.apply(service(service=ROUTE, auth=EVERYBODY))
        home.converged("hello")
        told = home.condition("hello", "Accepted")
        assert (told["status"], told["reason"]) == ("False", "KindNotServed")
        assert told["message"].startswith(
            "spec.service.httpRoute: the cluster has no gateway.networking.k8s.io/v1/HTTP"
        )
    home.get("deployment", CHILD)  # what can be made is there

    home.apply(GATEWAY_API)
    eventually(lambda: is_accepted(home))
    route = home.get("httproute", "hello")
    assert route["spec"]["parentRefs"] == [{"name": "gateway"}]
    assert route["spec"]["rules"] == [{"backendRefs": [{"name": "hello", "port": 80}]}]

    with quiet(operator, home):
        home.kubectl("patch", "httproute", "hello", "--type=merge", "--patch", '{"spec": {"hostnames": ["other"]}}')
        eventually(lambda: hosts_are(home, ["speech.example"]))
        home.kubectl("delete", "httproute", "hello")
        eventually(lambda: hosts_are(home, ["speech.example"]))

    without_gateway_api.run_kubectl("delete", "crd/httproutes.gateway.networking.k8s.io")
    eventually(lambda: accepted_is(home, ("False", "KindNotServed")))
    home.apply(service())
    eventually(lambda: is_accepted(home))


def hosts_are(home: Namespace, hosts: list[str]) -> None:
    assert home.get("httproute", "hello")["spec"]["hostnames"] == hosts


def accepted_is(home: Namespace, expected: tuple[str, str]) -> None:
    assert accepted(home) == expected


def test_keys_reach_the_workers_and_a_change_of_them_replaces_none(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service(auth=KEYS))
    home.converged("hello")
    pod = home.get("deployment", CHILD)["spec"]["template"]["spec"]
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "api-keys")
    assert volume["secret"]["secretName"] == "speech-keys"
    assert not volume["secret"].get("optional")
    environment = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
    (mount,) = (mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "api-keys")
    assert environment["COSYVOICE_API_KEYS_DIR"] == mount["mountPath"]
    with quiet(operator, home):
        home.kubectl("create", "secret", "generic", "speech-keys", "--from-literal=anna=one")
        home.kubectl("delete", "secret", "speech-keys")
        home.kubectl("create", "secret", "generic", "speech-keys", "--from-literal=anna=two")
    assert home.get("deployment", CHILD)["metadata"]["generation"] <= 2


def test_keys_that_are_missing_are_named_as_what_holds_the_workers_up(
    operator: OperatorProcess, home: Namespace
) -> None:
    home.apply(service(auth=KEYS))
    home.converged("hello")
    eventually(lambda: has_pod(home))
    home.set_pods(
        {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {
                    "type": "PodReadyToStartContainers",
                    "status": "False",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                },
            ],
            "containerStatuses": [
                {
                    "name": "worker",
                    "ready": False,
                    "restartCount": 0,
                    "image": "i",
                    "imageID": "",
                    "state": {"waiting": {"reason": "ContainerCreating"}},
                }
            ],
        }
    )

    def told() -> None:
        blocked = home.condition("hello", "RolloutBlocked")
        assert (blocked["status"], blocked["reason"]) == ("True", "VolumeMissing")
        assert "Secret speech-keys" in blocked["message"]

    eventually(told)


def has_pod(home: Namespace) -> None:
    assert home.list("pods")
