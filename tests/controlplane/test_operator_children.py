"""From a CosyVoiceService to its children, and what happens to them afterwards."""

from __future__ import annotations

import pytest

from cosyvoice_contract import LABEL_POOL
from cosyvoice_operator.plan import child_name
from tests.controlplane.operator_harness import Namespace, OperatorProcess, eventually, quiet, service

pytestmark = pytest.mark.controlplane

CHILD = child_name("hello", "cpu")


@pytest.fixture
def home(operator: OperatorProcess, namespace: str) -> Namespace:
    return Namespace(operator.plane, namespace)


def requests_in(operator: OperatorProcess, home: Namespace) -> list[str]:
    return [request for request in operator.requests() if f"/namespaces/{home.name}/" in request]


def test_a_service_becomes_its_children_with_one_request_each(operator: OperatorProcess, home: Namespace) -> None:
    with quiet(operator, home):
        home.apply(service())
        home.converged("hello")
        for kind, name in (("service", "hello"), ("deployment", CHILD), ("hpa", CHILD), ("pdb", CHILD)):
            child = eventually(lambda kind=kind, name=name: home.get(kind, name))  # type: ignore[misc]
            owner = child["metadata"]["ownerReferences"][0]
            assert (owner["kind"], owner["name"], owner["controller"]) == ("CosyVoiceService", "hello", True)
            assert "finalizers" not in child["metadata"]
    assert "finalizers" not in home.get("cosyvoiceservice", "hello")["metadata"]
    assert not [key for key in home.get("cosyvoiceservice", "hello")["metadata"]["annotations"] if "kopf" in key]
    children = [
        request for request in requests_in(operator, home) if "/status" not in request and "/events" not in request
    ]
    asked, *writes = children
    assert asked == f"get /api/v1/namespaces/{home.name}/services/hello", "is that name the user's?"
    assert len(writes) == 4, writes


def test_a_pool_starts_with_its_minimum_of_workers(home: Namespace) -> None:
    home.apply(service(pools=[{"name": "cpu", "card": "CPU", "workers": {"min": 2, "max": 3}}]))

    def seeded() -> None:
        assert home.get("deployment", CHILD)["spec"]["replicas"] == 2
        assert home.get("hpa", CHILD)["spec"]["minReplicas"] == 2

    eventually(seeded)


def test_what_somebody_changes_of_ours_is_put_back(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    with quiet(operator, home):
        home.kubectl("set", "image", f"deployment/{CHILD}", "worker=example.invalid/other:1")
        home.kubectl("label", "deployment", CHILD, "tts.cosyvoice.io/card-")
        home.kubectl("patch", "service", "hello", "--type=merge", "--patch", '{"spec": {"selector": {"app": "mine"}}}')
        home.kubectl("delete", "pdb", CHILD)

        def healed() -> None:
            deployment = home.get("deployment", CHILD)
            assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "cosyvoice-worker:dev-cpu"
            assert deployment["metadata"]["labels"]["tts.cosyvoice.io/card"] == "CPU"
            assert home.get("service", "hello")["spec"]["selector"] == {"tts.cosyvoice.io/service": "hello"}
            home.get("pdb", CHILD)

        eventually(healed)


def test_a_child_that_loses_our_label_is_found_again(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    home.kubectl("label", "deployment", CHILD, "--overwrite", "tts.cosyvoice.io/service=other")

    def relabelled() -> None:
        assert home.get("deployment", CHILD)["metadata"]["labels"]["tts.cosyvoice.io/service"] == "hello"

    eventually(relabelled)
    assert home.condition("hello", "Accepted")["status"] == "True"


def test_what_others_add_is_left_alone(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    with quiet(operator, home):
        home.kubectl("annotate", "deployment", CHILD, "example.com/mine=yes")
        home.kubectl("annotate", "service", "hello", "example.com/mine=yes")
    home.apply(service(drain={"timeoutSeconds": 7}))

    def changed() -> None:
        deployment = home.get("deployment", CHILD)
        assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 22
        assert deployment["metadata"]["annotations"]["example.com/mine"] == "yes"

    eventually(changed)
    assert home.get("service", "hello")["metadata"]["annotations"]["example.com/mine"] == "yes"


def test_the_number_of_workers_is_the_autoscalers(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    with quiet(operator, home):
        home.kubectl("scale", "deployment", CHILD, "--replicas=3")
        eventually(lambda: workers_shown(home, "0/3"))
    home.apply(service(drain={"timeoutSeconds": 7}))

    def rolled_out() -> None:
        deployment = home.get("deployment", CHILD)
        assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 22

    eventually(rolled_out)
    assert home.get("deployment", CHILD)["spec"]["replicas"] == 3


def workers_shown(home: Namespace, figure: str) -> None:
    assert home.get("cosyvoiceservice", "hello")["status"]["workers"] == figure


def test_scaling_is_handed_over_and_back_without_losing_a_worker(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    home.kubectl("scale", "deployment", CHILD, "--replicas=3")
    home.apply(service(autoscaling={"provider": "None"}))

    def without() -> None:
        assert home.list("hpa") == []
        assert home.condition("hello", "ScalingActive")["reason"] == "Disabled"

    eventually(without)
    assert home.get("deployment", CHILD)["spec"]["replicas"] == 3

    home.kubectl("scale", "deployment", CHILD, "--replicas=9")
    eventually(lambda: replicas_are(home, 3))  # the maximum
    home.kubectl("scale", "deployment", CHILD, "--replicas=2")
    eventually(lambda: workers_shown(home, "0/2"))

    home.apply(service())
    eventually(lambda: home.get("hpa", CHILD))
    home.converged("hello")
    assert home.get("deployment", CHILD)["spec"]["replicas"] == 2


def replicas_are(home: Namespace, number: int) -> None:
    assert home.get("deployment", CHILD)["spec"]["replicas"] == number


def test_a_pool_that_is_taken_out_goes_with_its_children(home: Namespace) -> None:
    two = [{"name": name, "card": "CPU", "workers": {"max": 2}} for name in ("cpu", "more")]
    home.apply(service(pools=two))
    home.converged("hello")
    assert len(home.list("deployment")) == len(home.list("hpa")) == len(home.list("pdb")) == 2
    home.apply(service(pools=two[:1]))

    def pruned() -> None:
        assert [len(home.list(kind)) for kind in ("deployment", "hpa", "pdb")] == [1, 1, 1]

    eventually(pruned)
    assert [pool["name"] for pool in home.converged("hello")["status"]["pools"]] == ["cpu"]


@pytest.mark.parametrize("rollout", ["Surge", "Recreate", "InPlace"])
def test_the_rollout_can_be_changed_both_ways(home: Namespace, rollout: str) -> None:
    home.apply(service(rollout={"type": "Surge"}))
    home.converged("hello")
    for kind in (rollout, "Surge"):
        home.apply(service(rollout={"type": kind}))
        home.converged("hello")
        assert home.condition("hello", "Accepted")["status"] == "True", home.condition("hello", "Accepted")


def test_a_paused_service_keeps_its_children_as_they_are(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    home.apply(service(paused=True, drain={"timeoutSeconds": 7}))
    home.converged("hello")
    assert home.condition("hello", "Accepted")["reason"] == "Paused"
    with quiet(operator, home, seconds=2):
        home.kubectl("delete", "pdb", CHILD)
    assert home.list("pdb") == []
    assert home.get("deployment", CHILD)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 345
    home.apply(service())
    eventually(lambda: home.get("pdb", CHILD))


def test_quantities_in_other_forms_do_not_make_it_write_again(operator: OperatorProcess, home: Namespace) -> None:
    odd = {"cpu": "1000m", "memory": "1024Mi", "example.com/thing": 1}
    pool = {"name": "cpu", "card": "CPU", "workers": {"max": 2}, "resources": {"requests": odd}}
    with quiet(operator, home):
        home.apply(service(pools=[pool | {"resources": {"requests": odd, "limits": {"example.com/thing": "1"}}}]))
        home.converged("hello")
        eventually(lambda: home.get("deployment", CHILD))
    container = home.get("deployment", CHILD)["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi", "example.com/thing": "1"}


def test_workers_are_admitted_where_pod_security_is_restricted(home: Namespace) -> None:
    home.kubectl("label", "namespace", home.name, "pod-security.kubernetes.io/enforce=restricted")
    claim = {"persistentVolumeClaim": {"claimName": "models", "path": "m"}}
    pools = [{"name": card.lower(), "card": card, "workers": {"max": 2}} for card in ("CPU", "T4")]
    home.apply(service(model={"name": "m", "source": claim}, pools=pools))

    def admitted() -> None:
        assert sorted(pod["metadata"]["labels"][LABEL_POOL] for pod in home.list("pods")) == ["cpu", "t4"]

    eventually(admitted)
