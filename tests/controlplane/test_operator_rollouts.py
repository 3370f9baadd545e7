"""A change of the operator's own reaches a fleet a few services at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cosyvoice_operator.plan import child_name
from tests.cluster.control_plane import ControlPlane
from tests.controlplane.operator_harness import READY, Namespace, OperatorProcess, eventually, service

pytestmark = pytest.mark.controlplane

NAMES = [f"s{number}" for number in range(4)]


@pytest.fixture
def operator(installed: ControlPlane) -> Iterator[OperatorProcess]:
    process = OperatorProcess(installed, "rollouts")
    process.start()
    yield process
    process.stop()


def tags(home: Namespace) -> list[str]:
    deployments = [home.get("deployment", child_name(name, "cpu")) for name in NAMES]
    images = [item["spec"]["template"]["spec"]["containers"][0]["image"] for item in deployments]
    return sorted(image.split(":")[1] for image in images)


def tags_are(home: Namespace, expected: list[str]) -> None:
    assert tags(home) == expected


def reasons(home: Namespace) -> list[str]:
    return sorted(home.condition(name, "Accepted")["reason"] for name in NAMES)


def reasons_are(home: Namespace, expected: list[str]) -> None:
    assert reasons(home) == expected


def test_a_new_worker_image_reaches_two_services_and_then_the_rest(operator: OperatorProcess, namespace: str) -> None:
    home = Namespace(operator.plane, namespace)
    for name in NAMES:
        home.apply(service(name))
    for name in NAMES:
        home.converged(name)
    eventually(lambda: pods_are(home, 4))
    home.set_pods(READY)
    for name in NAMES:
        deployment = f"deployment/{child_name(name, 'cpu')}"
        home.kubectl("wait", deployment, "--for=jsonpath={.status.readyReplicas}=1", "--timeout=20s")
    operator.stop()
    operator.start(settings={"workerImage": {"tag": "new"}, "rolloutsAtOnce": 2})

    eventually(lambda: tags_are(home, ["dev-cpu", "dev-cpu", "new-cpu", "new-cpu"]))
    eventually(lambda: reasons_are(home, ["Accepted", "Accepted", "RolloutQueued", "RolloutQueued"]))

    waiting = next(name for name in NAMES if home.condition(name, "Accepted")["reason"] == "RolloutQueued")
    home.apply(service(waiting, drain={"timeoutSeconds": 7}))
    eventually(lambda: tags_are(home, ["dev-cpu", "new-cpu", "new-cpu", "new-cpu"]))  # what a user wants does not wait

    eventually(lambda: pods_are(home, 4))
    home.set_pods(READY)
    eventually(lambda: tags_are(home, ["new-cpu"] * 4), timeout=60)
    eventually(lambda: reasons_are(home, ["Accepted"] * 4), timeout=60)


def pods_are(home: Namespace, number: int) -> None:
    assert len(home.list("pods")) == number
