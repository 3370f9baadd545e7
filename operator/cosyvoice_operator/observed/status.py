"""The status of a CosyVoiceService. Pure: the same facts give the same status, to the letter."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.service import Condition, PoolStatus, Status, StreamsPerWorker, WorkerCount
from cosyvoice_operator.observed import conditions
from cosyvoice_operator.observed.conditions import Verdict
from cosyvoice_operator.observed.pools import PoolFacts
from cosyvoice_operator.plan import Plan

_TROUBLE = {("Accepted", "False"), ("ModelReady", "False"), ("RolloutBlocked", "True"), ("CapacityShortfall", "True")}


def status_of(
    plan: Plan,
    pools: Sequence[PoolFacts],
    problem: SpecError | None,
    previous: Mapping[str, Any],
    now: datetime.datetime,
    *,
    queued: bool = False,
    metrics_owner: str = "",
) -> dict[str, Any]:
    """`problem` is what kept the plan from being carried out, if anything did; `previous` is the status so far.

    `queued`: new workers are wanted and wait for the rollouts of other services. `metrics_owner`: who else serves
    custom.metrics.k8s.io.
    """
    service = plan.service
    verdicts = [
        conditions.accepted(problem, service.spec.paused, queued),
        conditions.model_ready(pools),
        conditions.available(pools),
        conditions.scaling_active(pools, service.spec.autoscaling.provider, metrics_owner),
        conditions.rollout_blocked(pools),
        conditions.capacity_shortfall(pools),
        conditions.ready(pools, problem),
    ]
    status = Status(
        observed_generation=service.metadata.generation,
        url=plan.url,
        capacity_streams=sum(pool.capacity_streams for pool in pools),
        workers=f"{sum(pool.ready for pool in pools)}/{sum(pool.desired for pool in pools)}",
        cards=",".join(dict.fromkeys(pool.plan.pool.card for pool in pools)),
        conditions=_stamped(verdicts, previous, service.metadata.generation, now),
        pools=[_pool_status(pool) for pool in pools],
    )
    return status.model_dump(by_alias=True, exclude_none=True)


def refused_status(
    problem: SpecError, generation: int, previous: Mapping[str, Any], now: datetime.datetime
) -> dict[str, Any]:
    """Of a spec from which no plan can be made: what was said of the workers before stays said, as they stay."""
    verdicts = [conditions.accepted(problem, paused=False, queued=False), conditions.ready((), problem)]
    stamped = {
        condition.type: condition.model_dump(by_alias=True)
        for condition in _stamped(verdicts, previous, generation, now)
    }
    kept = {condition["type"]: condition for condition in _conditions(previous)}
    return {**previous, "observedGeneration": generation, "conditions": list((kept | stamped).values())}


def changed_conditions(previous: Mapping[str, Any], status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conditions whose status or reason is not what it was: what is worth an Event.

    Of a service that is seen for the first time only trouble is news, not that it is still coming up.
    """
    before = {condition["type"]: (condition["status"], condition["reason"]) for condition in _conditions(previous)}
    return [
        condition
        for condition in _conditions(status)
        if before.get(condition["type"]) != (condition["status"], condition["reason"])
        and (condition["type"] in before or (condition["type"], condition["status"]) in _TROUBLE)
    ]


def recheck_after(pools: Iterable[PoolFacts]) -> float | None:
    """Seconds after which the same facts would give another status, if time alone can do that."""
    due = [pool.problem.due_in for pool in pools if pool.rolling and pool.problem and pool.problem.due_in > 0]
    return min(due, default=None)


def _conditions(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(status.get("conditions", ()))


def _stamped(
    verdicts: Sequence[Verdict], previous: Mapping[str, Any], generation: int, now: datetime.datetime
) -> list[Condition]:
    """The time of a condition changes with its status, and with nothing else."""
    before = {condition["type"]: condition for condition in _conditions(previous)}
    stamp = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        Condition(
            type=verdict.type,
            status=verdict.status,
            reason=verdict.reason,
            message=verdict.message,
            observed_generation=generation,
            last_transition_time=before[verdict.type]["lastTransitionTime"]
            if before.get(verdict.type, {}).get("status") == verdict.status
            else stamp,
        )
        for verdict in verdicts
    ]


def _pool_status(pool: PoolFacts) -> PoolStatus:
    return PoolStatus(
        name=pool.plan.pool.name,
        card=pool.plan.pool.card,
        workers=WorkerCount(
            desired=pool.desired, ready=pool.ready, min=pool.plan.min_workers, max=pool.plan.max_workers
        ),
        capacity_streams=pool.capacity_streams,
        streams_per_worker=StreamsPerWorker(
            value=pool.streams_per_worker, from_="Measured" if pool.measured else pool.plan.streams_from
        ),
        limited_by=pool.limited_by,
    )
