"""What a user reads of a service while its workers come and fail."""

from __future__ import annotations

import pytest

from cosyvoice_contract import LoadReport
from tests.controlplane.operator_harness import (
    READY,
    Namespace,
    OperatorProcess,
    eventually,
    quiet,
    service,
    worker_at,
)

pytestmark = pytest.mark.controlplane


@pytest.fixture
def home(operator: OperatorProcess, namespace: str) -> Namespace:
    return Namespace(operator.plane, namespace)


def test_a_service_is_ready_when_its_workers_are(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    assert home.condition("hello", "Ready")["status"] == "False"
    eventually(lambda: pods_are(home, 1))
    with quiet(operator, home):
        home.set_pods(READY)
        home.kubectl("wait", "--for=condition=Ready", "cosyvoiceservice/hello", "--timeout=20s")
    row = home.kubectl("get", "cvs", "hello").splitlines()
    assert row[0].split() == ["NAME", "READY", "STREAMS", "WORKERS", "CARDS", "MODEL", "URL", "AGE"]
    url = f"http://hello.{home.name}.svc"
    assert row[1].split()[:7] == ["hello", "True", "10", "1/1", "CPU", "DemoEnglish", url]


def pods_are(home: Namespace, number: int) -> None:
    assert len(home.list("pods")) == number


def test_a_worker_that_misses_a_file_of_its_model_says_which(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    eventually(lambda: pods_are(home, 1))
    message = "/models/CosyVoice2-0.5B/flow.pt: missing"
    ended = {"exitCode": 1, "reason": "Error", "message": message}
    container = {"name": "worker", "ready": False, "restartCount": 2, "image": "i", "imageID": "i"}
    crash = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
    home.set_pods({"phase": "Running", "conditions": [], "containerStatuses": [container | crash]})

    def told() -> None:
        for name in ("ModelReady", "RolloutBlocked"):
            assert message in home.condition("hello", name)["message"]
        assert home.condition("hello", "ModelReady")["status"] == "False"
        assert "ModelLoadFailed" in home.condition("hello", "Ready")["message"]

    eventually(told)
    eventually(lambda: told_by_event(home, message))
    home.set_pods(READY)
    home.kubectl("wait", "--for=condition=ModelReady", "cosyvoiceservice/hello", "--timeout=20s")
    home.kubectl("wait", "--for=condition=RolloutBlocked=False", "cosyvoiceservice/hello", "--timeout=20s")


def told_by_event(home: Namespace, message: str) -> None:
    assert message in home.kubectl("get", "events", "--field-selector=reason=ModelLoadFailed")


def test_a_pod_that_finds_no_node_is_shown_at_once_as_what_limits_the_pool(home: Namespace) -> None:
    home.apply(service(pools=[{"name": "t4", "card": "T4", "workers": {"max": 2}}]))

    def shown() -> None:
        assert home.converged("hello")["status"]["pools"][0]["limitedBy"] == "Unschedulable"

    eventually(shown)
    assert home.condition("hello", "RolloutBlocked")["status"] == "False", "a node may still come"


def test_a_quota_is_named_as_what_blocks_the_rollout(home: Namespace) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}}
    home.apply({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}})
    eventually(lambda: quota_counts(home))
    home.apply(service(pools=[{"name": "t4", "card": "T4", "workers": {"max": 2}}]))

    def shown() -> None:
        blocked = home.condition("hello", "RolloutBlocked")
        assert (blocked["status"], blocked["reason"]) == ("True", "QuotaExceeded")
        assert "gpus" in blocked["message"]

    eventually(shown)


def quota_counts(home: Namespace) -> None:
    assert "nvidia" in home.kubectl("get", "resourcequota", "gpus", "--output=jsonpath={.status.hard}")


MEASURED = LoadReport(
    pool_card="CPU",
    demand=0.0,
    capacity=4.2,
    capacity_from="Measured",
    gpu_load=0.0,
    gpu_utilization=None,
    gpu_memory=0.0,
    running=0,
    queued=0,
    draining=False,
)


def test_a_capacity_that_workers_measured_is_shown_with_what_it_leaves_undone(
    operator: OperatorProcess, home: Namespace
) -> None:
    with worker_at("127.91.7.1", MEASURED):
        home.apply(service(pools=[{"name": "cpu", "card": "CPU", "concurrency": {"max": 30}}]))
        eventually(lambda: pods_are(home, 1))
        home.set_pods({**READY, "podIP": "127.91.7.1", "podIPs": [{"ip": "127.91.7.1"}]})
        eventually(lambda: measured_is_shown(home), timeout=90)  # asked every 30 s
    assert "30 streams need 8 workers" in home.condition("hello", "CapacityShortfall")["message"]
    assert home.get("cosyvoiceservice", "hello")["status"]["capacityStreams"] == 4


def measured_is_shown(home: Namespace) -> None:
    pool = home.get("cosyvoiceservice", "hello")["status"]["pools"][0]
    assert pool["streamsPerWorker"] == {"value": 4, "from": "Measured"}
    assert home.condition("hello", "CapacityShortfall")["status"] == "True"


def test_somebodys_change_of_the_status_is_put_right(operator: OperatorProcess, home: Namespace) -> None:
    home.apply(service())
    home.converged("hello")
    with quiet(operator, home):
        wrong = '{"status": {"url": "http://elsewhere"}}'
        home.kubectl("patch", "cvs", "hello", "--subresource=status", "--type=merge", "--patch", wrong)
        eventually(lambda: url_is_right(home))


def url_is_right(home: Namespace) -> None:
    assert home.get("cosyvoiceservice", "hello")["status"]["url"] == f"http://hello.{home.name}.svc"
