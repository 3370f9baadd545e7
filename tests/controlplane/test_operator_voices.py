"""The voices of a service reach its workers through a mounted file, and no worker is replaced for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cosyvoice_operator.plan import child_name
from tests.controlplane.operator_harness import Namespace, OperatorProcess, eventually, quiet, service

pytestmark = pytest.mark.controlplane

CHILD = child_name("hello", "cpu")
VOICES = child_name("hello", "voices")
ANNA = {
    "name": "anna",
    "text": "Good morning.",
    "audio": {"configMapKeyRef": {"name": "recordings", "key": "anna.wav"}},
}
BOB = {"name": "bob", "text": "Good evening.", "audio": {"secretKeyRef": {"name": "private", "key": "bob.wav"}}}


@pytest.fixture
def home(operator: OperatorProcess, namespace: str) -> Namespace:
    return Namespace(operator.plane, namespace)


def config(home: Namespace) -> Any:
    return json.loads(home.get("configmap", VOICES)["data"]["voices.json"])


def generation(home: Namespace) -> int:
    found: int = home.get("deployment", CHILD)["metadata"]["generation"]
    return found


def says(home: Namespace, voices: list[str], aliases: dict[str, str]) -> None:
    said = config(home)
    assert ([voice["name"] for voice in said["preset"]], said["aliases"]) == (voices, aliases)


def test_voices_come_change_and_go_and_only_another_object_to_mount_changes_the_pods(
    operator: OperatorProcess, home: Namespace
) -> None:
    with quiet(operator, home):
        home.apply(service(voices={"preset": [ANNA]}))
        home.converged("hello")
    says(home, ["anna"], {})
    assert home.get("configmap", VOICES)["metadata"]["ownerReferences"][0]["name"] == "hello"
    before = generation(home)

    changed = {**ANNA, "text": "Good morning to you."}
    home.apply(service(voices={"preset": [changed], "aliases": {"alloy": "anna"}}))
    eventually(lambda: says(home, ["anna"], {"alloy": "anna"}))
    assert config(home)["preset"][0]["text"] == "Good morning to you."
    assert generation(home) == before

    with quiet(operator, home):
        home.kubectl("patch", "configmap", VOICES, "--type=merge", "--patch", '{"data": {"voices.json": "{}"}}')
        eventually(lambda: says(home, ["anna"], {"alloy": "anna"}))
        home.kubectl("delete", "configmap", VOICES)
        eventually(lambda: says(home, ["anna"], {"alloy": "anna"}))
    assert generation(home) == before

    home.apply(service(voices={"preset": [changed, BOB]}))
    eventually(lambda: says(home, ["anna", "bob"], {}))
    eventually(lambda: grown(home, before))

    home.apply(service())

    def gone() -> None:
        assert home.list("configmap") == []

    eventually(gone)


def grown(home: Namespace, before: int) -> None:
    assert generation(home) > before


def test_a_config_map_of_the_users_is_never_taken_over(operator: OperatorProcess, home: Namespace) -> None:
    home.kubectl("create", "configmap", VOICES, "--from-literal=mine=yes")
    home.apply(service(voices={"preset": [ANNA]}))
    home.converged("hello")
    told = home.condition("hello", "Accepted")
    assert (told["status"], told["reason"]) == ("False", "NameTaken")
    assert home.get("configmap", VOICES)["data"] == {"mine": "yes"}


@pytest.mark.parametrize(
    ("voices", "told"),
    [
        (
            {"preset": [{**ANNA, "audio": {"path": "anna.wav"}}]},
            "store is required where a preset's audio is a path, which is a file in the store",
        ),
        (
            {"preset": [{**ANNA, "audio": {**ANNA["audio"], **BOB["audio"]}}]},
            "exactly one of configMapKeyRef, secretKeyRef, path is required",
        ),
        ({"preset": [ANNA, ANNA]}, "Duplicate value"),
    ],
    ids=["path without store", "two sources", "twice"],
)
def test_what_no_worker_could_use_is_refused_at_apply(
    operator: OperatorProcess, home: Namespace, voices: dict[str, Any], told: str
) -> None:
    assert told in home.apply(service(voices=voices), check=False)
