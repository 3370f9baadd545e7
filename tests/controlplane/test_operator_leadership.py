"""Two replicas: one works, the other takes over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from cosyvoice_operator.plan import child_name
from tests.cluster.control_plane import ControlPlane
from tests.controlplane.operator_harness import OPERATOR_NAMESPACE, Namespace, OperatorProcess, eventually, service

pytestmark = pytest.mark.controlplane

Pair = tuple[OperatorProcess, OperatorProcess]


@pytest.fixture
def pair(installed: ControlPlane) -> Iterator[Pair]:
    """Two replicas, the first of which leads."""
    first, second = OperatorProcess(installed, "replica-a"), OperatorProcess(installed, "replica-b")
    first.start()
    eventually(first.leads)
    second.start()
    yield first, second
    for process in (first, second):
        process.kill()


@pytest.fixture
def home(installed: ControlPlane, namespace: str) -> Namespace:
    return Namespace(installed, namespace)


def holder(plane: ControlPlane) -> str:
    lease = plane.run_kubectl("--namespace", OPERATOR_NAMESPACE, "get", "lease", "cosyvoice-operator", "--output=json")
    return str(json.loads(lease)["spec"]["holderIdentity"])


def test_one_replica_works_and_both_are_healthy(pair: Pair, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    time.sleep(2)
    assert holder(home.plane) == "replica-a"
    assert [process.get("/healthz")[0] for process in pair] == [200, 200]
    assert [process.get("/readyz")[0] for process in pair] == [200, 200]
    with pytest.raises(AssertionError, match="replica-b does not lead"):
        pair[1].leads()


def test_a_leader_that_dies_is_succeeded_within_30_seconds(pair: Pair, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    first, second = pair
    first.kill()
    died = time.monotonic()
    home.apply(service(drain={"timeoutSeconds": 7}))
    eventually(lambda: carried_out(home), timeout=40)
    assert time.monotonic() - died < 30
    second.leads()
    assert holder(home.plane) == "replica-b"


def carried_out(home: Namespace) -> None:
    pod = home.get("deployment", child_name("hello", "cpu"))["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 22


def test_a_leader_that_is_stopped_hands_over_at_once(pair: Pair, home: Namespace) -> None:
    first, second = pair
    assert first.stop() == 0
    stopped = time.monotonic()
    eventually(second.leads)
    assert time.monotonic() - stopped < 10
