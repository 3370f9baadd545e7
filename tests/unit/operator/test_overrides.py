"""A user's pod template over the operator's."""

from __future__ import annotations

from typing import Any

import pytest

from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.desired.overrides import merged
from cosyvoice_operator.desired.workers import deployment
from tests.unit.operator.builders import planned, pool


def template(**spec: Any) -> dict[str, Any]:
    plan = planned(**spec)
    made: dict[str, Any] = deployment(plan, plan.pools[0])["spec"]["template"]
    return made


def test_what_is_not_said_stays() -> None:
    plain = template()
    changed = template(podTemplate={"spec": {"priorityClassName": "gpu", "imagePullSecrets": [{"name": "regcred"}]}})
    assert changed["spec"].pop("priorityClassName") == "gpu"
    assert changed["spec"].pop("imagePullSecrets") == [{"name": "regcred"}]
    assert changed == plain


def test_the_worker_gets_variables_beside_its_own_and_a_sidecar_stands_beside_it() -> None:
    worker = {
        "name": "worker",
        "env": [{"name": "EXTRA", "value": "1"}, {"name": "COSYVOICE_LOG_LEVEL", "value": "debug"}],
    }
    changed = template(podTemplate={"spec": {"containers": [worker, {"name": "proxy", "image": "proxy:1"}]}})
    names = [container["name"] for container in changed["spec"]["containers"]]
    variables = {entry["name"]: entry["value"] for entry in changed["spec"]["containers"][0]["env"]}
    assert names == ["worker", "proxy"]
    assert (variables["EXTRA"], variables["COSYVOICE_LOG_LEVEL"], variables["COSYVOICE_CARD"]) == ("1", "debug", "T4")


def test_labels_are_added_but_not_those_by_which_pods_are_found() -> None:
    labels = {"team": "speech", "tts.cosyvoice.io/pool": "elsewhere"}
    made = template(podTemplate={"metadata": {"labels": labels, "annotations": {"a": "b"}}})
    assert made["metadata"]["labels"]["team"] == "speech"
    assert made["metadata"]["labels"]["tts.cosyvoice.io/pool"] == "t4"
    assert made["metadata"]["annotations"] == {"a": "b"}


def test_a_pools_template_lies_over_the_services() -> None:
    over = {"spec": {"priorityClassName": "low", "tolerations": [{"key": "x", "operator": "Exists"}]}}
    made = template(podTemplate={"spec": {"priorityClassName": "gpu"}}, pools=[pool(podTemplate=over)])
    assert made["spec"]["priorityClassName"] == "low"
    assert [item["key"] for item in made["spec"]["tolerations"]] == ["nvidia.com/gpu", "x"]


def test_null_removes_a_field() -> None:
    assert merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": None}}) == {"a": 1, "b": {"d": 3}}


def test_an_item_without_a_name_cannot_be_merged() -> None:
    with pytest.raises(SpecError, match=r"spec\.podTemplate\.spec: containers\[0\] needs a name"):
        planned(podTemplate={"spec": {"containers": [{"image": "x"}]}})


@pytest.mark.parametrize("field", ["containers", "volumes", "initContainers"])
def test_a_list_that_is_none_is_named(field: str) -> None:
    with pytest.raises(SpecError, match=rf"spec\.podTemplate\.spec: {field} is 5; write a list"):
        planned(podTemplate={"spec": {field: 5}})


ODD_ITEMS: list[Any] = [{"name": {}}, {"name": []}, {"name": None}, {}, 5, "x", None]


@pytest.mark.parametrize("odd", ODD_ITEMS, ids=repr)
@pytest.mark.parametrize("field", ["env", "ports", "volumeMounts"])
def test_an_item_that_cannot_be_merged_is_left_to_the_api_server(field: str, odd: Any) -> None:
    over = {"spec": {"containers": [{"name": "worker", field: [odd]}]}}
    made = template(podTemplate=over, pools=[pool(podTemplate=over)])
    assert made["spec"]["containers"][0][field][-2:] == [odd, odd]


def test_the_inputs_are_left_as_they_are() -> None:
    base: dict[str, Any] = {"env": [{"name": "A", "value": "1"}]}
    merged(base, {"env": [{"name": "A", "value": "2"}]})
    assert base == {"env": [{"name": "A", "value": "1"}]}
