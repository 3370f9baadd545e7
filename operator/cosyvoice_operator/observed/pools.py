"""What a pool's children and pods show. Pure; objects are as `cluster.store` keeps them."""

from __future__ import annotations

import datetime
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cosyvoice_contract import LABEL_POOL, WORKER_CONTAINER
from cosyvoice_operator.plan import PoolPlan

Object = Mapping[str, Any]

SETTLING_SECONDS = 300
"""How long a pod may wait for a node before that is news: node autoscalers bring a machine with a GPU in three to six
minutes."""
MOUNTING_SECONDS = 120
"""How long a pod on its node may wait for its volumes: a network disk takes up to a minute to be attached."""
MESSAGE_MAX = 500
_BEFORE_OR_BY_LABELS = re.compile(
    r"(\d+) node\(s\) (?:didn't match Pod's node affinity|had untolerated taint|were unschedulable)"
)
"""The scheduler counts each node under the first filter that it fails. These come before, or look at, the labels: a
node counted under anything else bears them."""


@dataclass(frozen=True)
class Problem:
    """Why a worker does not come up."""

    reason: str
    """`ModelLoadFailed`, `WorkerCrashed`, `OOMKilled`, `ImageNotPullable`, `ConfigurationRefused`, `VolumeMissing`,
    `Unschedulable`, `NoNodeForCard`, `QuotaExceeded` or `AdmissionDenied`."""
    message: str
    due_in: float = 0.0
    """Seconds until it counts as blocking; until then it may still settle by itself."""


@dataclass(frozen=True)
class PoolFacts:
    """What is seen of one pool."""

    plan: PoolPlan
    desired: int
    """Workers asked for by the autoscaler, or by who scales by hand."""
    ready: int
    problem: Problem | None
    scaling_problem: tuple[str, str] | None
    """(reason, message) of an autoscaler that does not act, e.g. because its metric is missing."""
    at_maximum: bool
    scaling_known: bool
    """The autoscaler has said whether it acts."""
    rolling: bool
    """The newest template has not yet had all its workers available at once; growing after that is no rollout."""
    replaced: bool
    """No worker of an earlier template is left; those that there are may still be coming up."""
    measured: int | None
    """Streams per worker, the median of what the pool's workers measured; None until one has."""

    @property
    def streams_per_worker(self) -> int:
        return self.measured or self.plan.streams_per_worker

    @property
    def capacity_streams(self) -> int:
        return self.ready * self.streams_per_worker

    @property
    def workers_needed(self) -> int:
        """To carry the most streams that the pool was asked for, by what its workers measured."""
        asked = self.plan.pool.concurrency
        return math.ceil(asked.max / self.streams_per_worker) if asked is not None else self.plan.max_workers

    @property
    def waits_for_node(self) -> bool:
        """It has for long; a rollout may stand still for that, and no other has to wait for it."""
        problem = self.problem
        return problem is not None and problem.reason in ("Unschedulable", "NoNodeForCard") and problem.due_in <= 0

    @property
    def limited_by(self) -> str:
        """What keeps the pool from having more workers ready; empty: nothing."""
        if self.problem is not None:
            return self.problem.reason
        if self.scaling_problem is not None:
            return "MetricMissing"
        return "MaxReached" if self.at_maximum else ""


def pool_facts(
    plan: PoolPlan,
    deployment: Object | None,
    autoscaler: Object | None,
    pods: Iterable[Object],
    *,
    measured: Mapping[str, float],
    drain_seconds: int,
    now: datetime.datetime,
) -> PoolFacts:
    """`pods` may hold those of other pools; `autoscaler` is None where there is none or it does not exist yet.

    `measured` is pod uid -> audio seconds per second, of pods that have measured it.
    """
    own = [pod for pod in pods if pod["metadata"].get("labels", {}).get(LABEL_POOL) == plan.pool.name]
    status = deployment["status"] if deployment else {}
    return PoolFacts(
        plan=plan,
        desired=deployment["spec"]["replicas"] if deployment else plan.min_workers,
        ready=status.get("readyReplicas", 0),
        problem=_problem(plan, status, own, drain_seconds, now),
        scaling_problem=_scaling_problem(autoscaler) if autoscaler else None,
        at_maximum=_condition(autoscaler or {}, "ScalingLimited").get("reason") == "TooManyReplicas",
        scaling_known=bool(_condition(autoscaler or {}, "ScalingActive")),
        rolling=not any(
            condition["type"] == "Progressing" and condition.get("reason") == "NewReplicaSetAvailable"
            for condition in status.get("conditions", ())
        ),
        replaced=deployment is not None and _replaced(deployment),
        measured=_median([measured[uid] for pod in own if (uid := pod["metadata"]["uid"]) in measured]),
    )


def _problem(
    plan: PoolPlan, status: Mapping[str, Any], pods: list[Object], drain_seconds: int, now: datetime.datetime
) -> Problem | None:
    """The first worker that cannot come up tells; what nobody but a person can mend goes first."""
    # A pod that has ended (evicted, its node shut down) stays to be looked at; another is there in its place.
    pods = [pod for pod in pods if pod["status"].get("phase") not in ("Failed", "Succeeded")]
    problems = [_container_problem(pod) for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    problems.append(_refused(status))
    draining = any("deletionTimestamp" in pod["metadata"] for pod in pods)
    patience = SETTLING_SECONDS + (drain_seconds if draining else 0)
    problems += [_unmounted(plan, pod, now) for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    problems += [_unschedulable(plan, pod, patience, now) for pod in pods]
    return next((problem for problem in problems if problem is not None), None)


def _container_problem(pod: Object) -> Problem | None:
    for container in pod.get("status", {}).get("containerStatuses", ()):
        if container["name"] != WORKER_CONTAINER or container.get("ready"):
            continue
        state = container.get("state", {})
        waiting = state.get("waiting", {})
        if waiting.get("reason") in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"):
            return Problem(
                "ImageNotPullable", f"image {container.get('image', '')}: {_short(waiting.get('message', ''))}"
            )
        if waiting.get("reason") in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
            return Problem("ConfigurationRefused", _short(waiting.get("message", "")))
        if "running" in state and container.get("started") is True:
            continue  # it is up and only not ready for a moment: what ended it once is long past
        ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
        if ended and ended.get("exitCode", 0) != 0:
            return _ended(pod, ended)
    return None


def _ended(pod: Object, ended: Mapping[str, Any]) -> Problem:
    said = _short(ended.get("message", "")) or f"exit code {ended['exitCode']} ({ended.get('reason', 'Error')})"
    if ended.get("reason") == "OOMKilled":
        return Problem("OOMKilled", f"the worker was killed for its memory; raise resources.limits.memory: {said}")
    # Readiness was lost after that run of the container began: it had been ready, so it has loaded its model.
    lost, began = _condition(pod, "Ready").get("lastTransitionTime"), ended.get("startedAt")
    if lost and began and datetime.datetime.fromisoformat(lost) > datetime.datetime.fromisoformat(began):
        return Problem("WorkerCrashed", f"the worker stopped after it had been ready: {said}")
    return Problem("ModelLoadFailed", f"the worker stopped before it was ready: {said}")


def _replaced(deployment: Object) -> bool:
    status = deployment["status"]
    return bool(
        status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        and status.get("updatedReplicas", 0) == status.get("replicas", 0)
    )


def _refused(status: Mapping[str, Any]) -> Problem | None:
    for condition in status.get("conditions", ()):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = _short(condition.get("message", ""))
            return Problem("QuotaExceeded" if "exceeded quota" in message else "AdmissionDenied", message)
    return None


def _unmounted(plan: PoolPlan, pod: Object, now: datetime.datetime) -> Problem | None:
    """Placed on a node, but the kubelet has no sandbox for it: its volumes come first. What exactly is missing is in
    the kubelet's Events, which the operator has no right to read, as it has none to read Secrets."""
    condition = _condition(pod, "PodReadyToStartContainers")
    if condition.get("status") != "False" or pod["status"].get("phase") != "Pending":
        return None
    waited = (now - datetime.datetime.fromisoformat(condition["lastTransitionTime"])).total_seconds()
    mounts = ", ".join(plan.mounts) or "nothing of the user's"
    return Problem(
        "VolumeMissing",
        f"its node cannot set up a worker's pod, which mounts {mounts}; create what is missing "
        f"(`kubectl describe pod {pod['metadata']['name']}` names it)",
        max(0.0, MOUNTING_SECONDS - waited),
    )


def _unschedulable(plan: PoolPlan, pod: Object, patience: float, now: datetime.datetime) -> Problem | None:
    """A replacement waits as long as the worker before it drains: that is no lack of GPUs, hence the patience."""
    condition = _condition(pod, "PodScheduled")
    if condition.get("status") != "False" or condition.get("reason") != "Unschedulable":
        return None
    waited = (now - datetime.datetime.fromisoformat(condition["lastTransitionTime"])).total_seconds()
    message = _short(condition.get("message", ""))
    if _no_node_has_card(message):
        labels = " or ".join(plan.node_labels) or "its nodeSelector"
        return Problem(
            "NoNodeForCard",
            f"no node with room is known to have card {plan.pool.card}, looked for by {labels}; label the nodes, name "
            f"them by the pool's nodeSelector, or lay your labels over the card's row ({message})",
            max(0.0, patience - waited),
        )
    return Problem("Unschedulable", message, max(0.0, patience - waited))


def _no_node_has_card(message: str) -> bool:
    """Whether the scheduler's words say that no node matched the pod's labels, and not that those that did are full."""
    nodes = re.match(r"0/(\d+) nodes are available", message)
    counted = sum(int(count) for count in _BEFORE_OR_BY_LABELS.findall(message))
    return "didn't match Pod's node affinity" in message and nodes is not None and counted >= int(nodes[1])


def _scaling_problem(autoscaler: Object) -> tuple[str, str] | None:
    for name in ("AbleToScale", "ScalingActive"):
        condition = _condition(autoscaler, name)
        if condition.get("status") == "False":
            return condition.get("reason", name), _short(condition.get("message", ""))
    return None


def _condition(thing: Object, name: str) -> Mapping[str, Any]:
    conditions = thing.get("status", {}).get("conditions", ())
    return next((condition for condition in conditions if condition["type"] == name), {})


def _median(capacities: list[float]) -> int | None:
    """Whole streams, and at least one."""
    return max(1, int(statistics.median(capacities))) if capacities else None


def _short(message: str) -> str:
    """The end of a long message: logs end with the cause."""
    message = " ".join(message.split())
    return message if len(message) <= MESSAGE_MAX else f"...{message[-MESSAGE_MAX:]}"
