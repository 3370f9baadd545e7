"""What the status says of what is seen."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.observed.pools import PoolFacts, pool_facts
from cosyvoice_operator.observed.status import changed_conditions, recheck_after, refused_status, status_of
from tests.unit.operator.builders import deployment, planned, pod, pool

NOW = datetime.datetime(2026, 12, 1, 12, 0, tzinfo=datetime.UTC)
EARLIER = "2026-12-01T11:00:00Z"
PLAN = planned(pools=[{"name": "t4", "card": "T4", "workers": {"min": 2, "max": 4}}], drain={"timeoutSeconds": 330})


def facts(
    deployed: Any = None, autoscaler: Any = None, pods: tuple[Any, ...] = (), measured: Any = None, plan: Any = PLAN
) -> list[PoolFacts]:
    pool = plan.pools[0]
    return [pool_facts(pool, deployed, autoscaler, pods, measured=measured or {}, drain_seconds=330, now=NOW)]


def status(
    pools: list[PoolFacts], previous: Any = None, problem: SpecError | None = None, metrics_owner: str = ""
) -> dict[str, Any]:
    return status_of(PLAN, pools, problem, previous or {}, NOW, metrics_owner=metrics_owner)


def condition(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(condition for condition in status["conditions"] if condition["type"] == name)


def autoscaler(*conditions: dict[str, str]) -> dict[str, Any]:
    return {"status": {"conditions": list(conditions)}}


READING = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}


def test_ready_means_that_every_pool_has_its_minimum() -> None:
    below = status(facts(deployment(replicas=3, ready=1)))
    assert condition(below, "Ready")["status"] == "False"
    assert condition(below, "Ready")["message"] == "pool t4: 1 of at least 2 workers ready"
    assert condition(below, "Available")["status"] == "True", "one worker serves"
    enough = status(facts(deployment(replicas=3, ready=2)))
    assert condition(enough, "Ready")["status"] == "True"


def test_figures_of_a_pool_and_of_the_service() -> None:
    shown = status(facts(deployment(replicas=3, ready=2)))
    assert shown["pools"] == [
        {
            "name": "t4",
            "card": "T4",
            "workers": {"desired": 3, "ready": 2, "min": 2, "max": 4},
            "capacityStreams": 100,
            "streamsPerWorker": {"value": 50, "from": "Catalogue"},
            "limitedBy": "",
        }
    ]
    assert (shown["workers"], shown["cards"], shown["capacityStreams"]) == ("2/3", "T4", 100)
    assert shown["url"] == "http://narrator.speech.svc"
    assert shown["observedGeneration"] == 1


def test_before_anything_is_seen_nothing_is_claimed() -> None:
    shown = status(facts())
    assert condition(shown, "ModelReady")["status"] == "Unknown"
    assert condition(shown, "ScalingActive")["status"] == "Unknown"
    assert condition(shown, "Ready")["status"] == "False"


def test_a_worker_that_crashes_says_why_in_the_condition() -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": "/models/CosyVoice2-0.5B/flow.pt: missing\n"}
    crashed = pod(container={"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}})
    shown = status(facts(deployment(replicas=2), pods=(crashed,)))
    for name, state in (("ModelReady", "False"), ("RolloutBlocked", "True")):
        assert condition(shown, name)["status"] == state
        assert condition(shown, name)["reason"] == "ModelLoadFailed"
        assert "/models/CosyVoice2-0.5B/flow.pt: missing" in condition(shown, name)["message"]
    assert shown["pools"][0]["limitedBy"] == "ModelLoadFailed"


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        ({"reason": "ImagePullBackOff", "message": "not found"}, "ImageNotPullable"),
        ({"reason": "CreateContainerConfigError", "message": "runAsNonRoot"}, "ConfigurationRefused"),
    ],
)
def test_a_container_that_cannot_start_blocks_the_rollout(waiting: dict[str, str], reason: str) -> None:
    shown = status(facts(deployment(replicas=2), pods=(pod(container={"state": {"waiting": waiting}}),)))
    assert condition(shown, "RolloutBlocked")["reason"] == reason
    assert waiting["message"] in condition(shown, "RolloutBlocked")["message"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1', "QuotaExceeded"),
        ('admission webhook "policy.example" denied the request', "AdmissionDenied"),
    ],
)
def test_a_pod_that_is_refused_blocks_the_rollout(message: str, reason: str) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    shown = status(facts(deployment(replicas=2, conditions=(failure,))))
    assert condition(shown, "RolloutBlocked")["reason"] == reason


def test_a_pod_whose_volumes_do_not_come_names_what_it_mounts() -> None:
    plan = planned(auth={"mode": "APIKeys", "apiKeysSecretRef": {"name": "keys"}})
    unmounted = pod(phase="Pending", container={"state": {"waiting": {"reason": "ContainerCreating"}}})
    since = (NOW - datetime.timedelta(seconds=100)).isoformat()
    unmounted["status"]["conditions"] = [
        {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": since}
    ]
    seen = facts(deployment(replicas=2), pods=(unmounted,), plan=plan)
    assert condition(status(seen), "RolloutBlocked")["status"] == "False", "a disk may take its time"
    assert recheck_after(seen) == 20
    unmounted["status"]["conditions"][0]["lastTransitionTime"] = EARLIER
    blocked = condition(status(facts(deployment(replicas=2), pods=(unmounted,), plan=plan)), "RolloutBlocked")
    assert (blocked["status"], blocked["reason"]) == ("True", "VolumeMissing")
    assert "Secret keys (spec.auth.apiKeysSecretRef)" in blocked["message"]


def waiting_since(seconds: float) -> dict[str, str]:
    since = NOW - datetime.timedelta(seconds=seconds)
    return {
        "lastTransitionTime": since.isoformat(),
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    }


def test_a_pod_without_a_gpu_is_news_only_after_schedulers_had_their_time() -> None:
    at_first = facts(deployment(replicas=2), pods=(pod(unschedulable=waiting_since(10)),))
    assert condition(status(at_first), "RolloutBlocked")["status"] == "False"
    assert recheck_after(at_first) == 290
    later = facts(deployment(replicas=2), pods=(pod(unschedulable=waiting_since(301)),))
    assert condition(status(later), "RolloutBlocked")["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in condition(status(later), "RolloutBlocked")["message"]
    assert recheck_after(later) is None


def test_a_card_that_no_node_has_is_told_with_the_labels_looked_for() -> None:
    message = (
        "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
        "2 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available: "
        "3 Preemption is not helpful for scheduling."
    )
    lonely = pod(unschedulable={**waiting_since(301), "message": message})
    blocked = condition(status(facts(deployment(replicas=2), pods=(lonely,))), "RolloutBlocked")
    assert blocked["reason"] == "NoNodeForCard"
    assert "card T4, looked for by nvidia.com/gpu.product in (Tesla-T4, Tesla-T4-SHARED) or" in blocked["message"]
    assert message in blocked["message"]


@pytest.mark.parametrize(
    "full",
    [
        "1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector",
        "1 node(s) had volume node affinity conflict, 2 node(s) didn't match Pod's node affinity/selector",
        "3 node(s) had volume node affinity conflict",
    ],
)
def test_a_card_whose_nodes_are_full_is_not_a_card_that_no_node_has(full: str) -> None:
    waits = pod(unschedulable={**waiting_since(301), "message": f"0/3 nodes are available: {full}."})
    blocked = condition(status(facts(deployment(replicas=2), pods=(waits,))), "RolloutBlocked")
    assert blocked["reason"] == "Unschedulable"


COMPLETE = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}


def test_a_pool_that_only_grows_has_no_rollout_to_be_blocked() -> None:
    grown = facts(
        deployment(replicas=3, ready=2, conditions=(COMPLETE,)), pods=(pod(unschedulable=waiting_since(999)),)
    )
    shown = status(grown)
    assert condition(shown, "RolloutBlocked")["status"] == "False"
    assert shown["pools"][0]["limitedBy"] == "Unschedulable"
    assert recheck_after(grown) is None


def test_a_rollout_that_waits_for_a_node_for_long_is_told_from_one_that_fails() -> None:
    def waits(*pods: Any) -> bool:
        return facts(deployment(replicas=3, ready=2), pods=pods)[0].waits_for_node

    crashed = pod(container={"state": {"terminated": {"exitCode": 1}}})
    assert waits(pod(unschedulable=waiting_since(301)))
    assert not waits(pod(unschedulable=waiting_since(299)))
    assert not waits(crashed, pod(unschedulable=waiting_since(301))), "a bad image is not to reach the rest"


def test_a_pod_that_was_evicted_blocks_nothing() -> None:
    ended = {"state": {"terminated": {"exitCode": 137, "reason": "Error"}}}
    shown = status(facts(deployment(replicas=2, ready=2), pods=(pod(container=ended, phase="Failed"),)))
    assert condition(shown, "RolloutBlocked")["status"] == "False"
    assert condition(shown, "ModelReady")["status"] == "True"


OOM = {"exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-11-20T10:00:00Z"}


def test_a_crash_long_past_is_no_news_of_a_worker_that_runs() -> None:
    unready = pod(container={"state": {"running": {}}, "started": True, "lastState": {"terminated": OOM}})
    assert facts(deployment(replicas=2, ready=1), pods=(unready,))[0].problem is None


@pytest.mark.parametrize(
    ("ended", "unready_since", "reason"),
    [
        (OOM, "2026-11-20T10:00:00Z", "OOMKilled"),
        ({"exitCode": 139, "startedAt": "2026-11-20T10:00:00Z"}, "2026-11-20T11:00:00Z", "WorkerCrashed"),
        ({"exitCode": 1, "startedAt": "2026-11-20T10:00:00Z"}, "2026-11-20T09:59:58Z", "ModelLoadFailed"),
    ],
)
def test_a_worker_that_was_ready_before_it_ended_did_load_its_model(
    ended: Any, unready_since: str, reason: str
) -> None:
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
    crashed = pod(container=waiting)
    crashed["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": unready_since}]
    shown = status(facts(deployment(replicas=2), pods=(crashed,)))
    assert condition(shown, "RolloutBlocked")["reason"] == reason
    assert (condition(shown, "ModelReady")["status"] == "False") == (reason == "ModelLoadFailed")


def test_a_replacement_that_waits_for_a_drain_is_no_lack_of_gpus() -> None:
    draining = pod(going=True)
    waiting = facts(deployment(replicas=2), pods=(draining, pod(unschedulable=waiting_since(200))))
    assert condition(status(waiting), "RolloutBlocked")["status"] == "False"
    assert recheck_after(waiting) == 330 + 300 - 200


def test_pods_of_other_pools_do_not_count() -> None:
    other = pod(pool="a100", unschedulable=waiting_since(500))
    assert facts(deployment(), pods=(other,))[0].problem is None


def test_an_autoscaler_without_its_metric_says_so() -> None:
    deaf = {"type": "ScalingActive", "status": "False", "reason": "FailedGetObjectMetric", "message": "no gpu_load"}
    shown = status(facts(deployment(replicas=2, ready=2), autoscaler(deaf)))
    assert condition(shown, "ScalingActive")["reason"] == "FailedGetObjectMetric"
    assert "no gpu_load" in condition(shown, "ScalingActive")["message"]
    assert shown["pools"][0]["limitedBy"] == "MetricMissing"
    assert condition(shown, "Ready")["status"] == "True", "what is there serves"


def test_a_pool_at_its_maximum_says_so() -> None:
    limited = {"type": "ScalingLimited", "status": "True", "reason": "TooManyReplicas"}
    shown = status(facts(deployment(replicas=4, ready=4), autoscaler(READING, limited)))
    assert shown["pools"][0]["limitedBy"] == "MaxReached"


def test_what_the_workers_measured_replaces_the_catalogues_figure() -> None:
    pods = (pod(uid="a"), pod(uid="b"), pod(uid="c"))
    shown = status(facts(deployment(replicas=3, ready=3), pods=pods, measured={"a": 11.9, "b": 30.0, "elsewhere": 1}))
    assert shown["pools"][0]["streamsPerWorker"] == {"value": 20, "from": "Measured"}
    assert shown["capacityStreams"] == 60


def test_streams_that_do_not_fit_the_measured_capacity_are_told_in_numbers() -> None:
    plan = planned()
    shown = status(facts(deployment(replicas=8, ready=8), pods=(pod(uid="a"),), measured={"a": 12.0}, plan=plan))
    shortfall = condition(shown, "CapacityShortfall")
    assert shortfall["status"] == "True"
    assert "400 streams need 34 workers of 12 streams as measured, the maximum is 8" in shortfall["message"]
    enough = status(facts(deployment(replicas=8, ready=8), plan=plan))
    assert condition(enough, "CapacityShortfall")["status"] == "False"


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    previous = status(facts(deployment(replicas=2)))
    for entry in previous["conditions"]:
        entry["lastTransitionTime"] = EARLIER
    shown = status(facts(deployment(replicas=2, ready=2)), previous)
    assert condition(shown, "Accepted")["lastTransitionTime"] == EARLIER
    assert condition(shown, "Ready")["lastTransitionTime"] == "2026-12-01T12:00:00Z"


def test_the_same_facts_give_the_same_status() -> None:
    first = status(facts(deployment(replicas=2, ready=2)))
    assert status(facts(deployment(replicas=2, ready=2)), first) == first


def test_a_refused_spec_leaves_what_was_said_of_the_workers() -> None:
    before = status(facts(deployment(replicas=2, ready=2), autoscaler(READING)))
    problem = SpecError("UnknownCard", "spec.pools[0].card: 'V100' is not in the card catalogue")
    shown = refused_status(problem, 2, before, NOW)
    assert condition(shown, "Accepted") | {"lastTransitionTime": ""} == {
        "type": "Accepted",
        "status": "False",
        "reason": "UnknownCard",
        "message": problem.message,
        "observedGeneration": 2,
        "lastTransitionTime": "",
    }
    assert condition(shown, "Ready")["status"] == "False"
    assert condition(shown, "Available") == condition(before, "Available")
    assert shown["pools"] == before["pools"]


def test_only_changes_are_news() -> None:
    first = status(facts(deployment(replicas=2)))
    assert changed_conditions({}, first) == []
    refused = refused_status(SpecError("UnknownCard", "no such card"), 1, {}, NOW)
    assert [entry["type"] for entry in changed_conditions({}, refused)] == ["Accepted"]
    assert changed_conditions(first, first) == []
    second = status(facts(deployment(replicas=2, ready=2)), first)
    assert {entry["type"] for entry in changed_conditions(first, second)} == {"ModelReady", "Available", "Ready"}


def test_a_pool_named_in_the_spec_is_shown_before_it_exists() -> None:
    plan = planned(pools=[pool(), pool(name="a100", card="A100")])
    seen = [pool_facts(pool, None, None, (), measured={}, drain_seconds=0, now=NOW) for pool in plan.pools]
    assert [entry["workers"]["desired"] for entry in status_of(plan, seen, None, {}, NOW)["pools"]] == [1, 1]


def test_another_owner_of_the_metrics_api_is_named_with_the_ways_out() -> None:
    missing = {"type": "ScalingActive", "status": "False", "reason": "FailedGetObjectMetric", "message": "not found"}
    blind = facts(deployment(replicas=2, ready=2), autoscaler(missing))
    said = condition(status(blind, metrics_owner="Service monitoring/prometheus-adapter"), "ScalingActive")
    assert (said["status"], said["reason"]) == ("False", "MetricsAPIOwnedByOther")
    assert "is served by Service monitoring/prometheus-adapter" in said["message"]
    assert "spec.autoscaling.provider to KEDA" in said["message"]
    # An adapter that has the rules serves the readings: no trouble, whoever owns the group.
    seeing = facts(deployment(replicas=2, ready=2), autoscaler(READING))
    assert condition(status(seeing, metrics_owner="Service monitoring/x"), "ScalingActive")["status"] == "True"
