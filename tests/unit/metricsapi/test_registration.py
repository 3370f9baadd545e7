"""What is registered, and what is left alone."""

from __future__ import annotations

import base64
from typing import Any

from cosyvoice_operator.metricsapi.registration import Backend, Owner, Plan, plan

BACKEND = Backend("cosyvoice", "metrics-api", 443)
OWNER = Owner("cosyvoice-metrics-api", "uid-1")
CA = b"-----BEGIN CERTIFICATE-----"


def planned(existing: list[dict[str, Any]], owner: Owner | None = OWNER, ca: bytes = CA) -> Plan:
    return plan(existing, BACKEND, owner, ca)


def registered() -> list[dict[str, Any]]:
    items = list(planned([]).create)
    for version, item in enumerate(items):
        item["metadata"] |= {"resourceVersion": str(version), "uid": f"a{version}"}
    return items


def foreign(version: str = "v1beta1", service: Any = ("monitoring", "prometheus-adapter")) -> dict[str, Any]:
    spec: dict[str, Any] = {"group": "custom.metrics.k8s.io", "version": version}
    if service:
        spec["service"] = {"namespace": service[0], "name": service[1]}
    return {"metadata": {"name": f"{version}.custom.metrics.k8s.io", "resourceVersion": "7"}, "spec": spec}


def names(items: tuple[dict[str, Any], ...]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


def test_both_versions_are_made_where_nobody_serves_the_group() -> None:
    made = planned([]).create
    assert names(made) == ["v1beta2.custom.metrics.k8s.io", "v1beta1.custom.metrics.k8s.io"]
    assert [item["spec"]["versionPriority"] for item in made] == [200, 100]
    assert base64.b64decode(made[0]["spec"]["caBundle"]) == CA


def test_they_belong_to_the_cluster_role_so_that_they_go_with_it() -> None:
    for item in planned([]).create:
        assert item["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "name": "cosyvoice-metrics-api",
                "uid": "uid-1",
            }
        ]


def test_nothing_is_written_when_all_is_right() -> None:
    assert planned(registered()) == Plan()


def test_a_new_ca_is_written_to_both_with_the_version_that_was_read() -> None:
    updated = planned(registered(), ca=b"new").update
    assert [item["metadata"]["resourceVersion"] for item in updated] == ["0", "1"]
    assert {base64.b64decode(item["spec"]["caBundle"]) for item in updated} == {b"new"}


def test_what_an_earlier_release_left_gets_the_present_owner() -> None:
    updated = planned(registered(), Owner("cosyvoice-metrics-api", "uid-2")).update
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in updated} == {"uid-2"}


def test_other_groups_are_nobodys_business() -> None:
    other = {"metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec": {"group": "metrics.k8s.io", "version": "v1beta1"}}
    core = {"metadata": {"name": "v1."}, "spec": {"version": "v1", "groupPriorityMinimum": 18000}}
    assert len(planned([other, core]).create) == 2


def test_a_group_that_another_server_owns_is_left_alone_and_the_owner_is_named() -> None:
    assert planned([foreign()]) == Plan(
        foreign="v1beta1.custom.metrics.k8s.io is served by Service monitoring/prometheus-adapter"
    )


def test_a_group_that_kube_apiserver_itself_serves_is_left_alone() -> None:
    assert planned([foreign(service=None)]).foreign.endswith("is served by kube-apiserver itself")


def test_when_another_server_takes_one_version_ours_is_withdrawn_and_theirs_untouched() -> None:
    theirs = foreign("v1beta1")
    ours = [item for item in registered() if item["metadata"]["name"].startswith("v1beta2")]
    assert planned([*ours, theirs]).delete == ("v1beta2.custom.metrics.k8s.io",)


def test_a_second_installation_does_not_take_the_group_from_the_first() -> None:
    assert planned([foreign("v1beta2", ("elsewhere", "metrics-api"))]).create == ()


def test_all_of_ours_and_nothing_else_goes_when_the_release_is_removed() -> None:
    other = foreign("v1")
    going = planned([*registered(), other], owner=None)
    assert going.delete == ("v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io")
    assert planned([], owner=None) == Plan()
