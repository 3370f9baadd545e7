"""The conditions of a CosyVoiceService. Each is one small pure function of what is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.observed.pools import PoolFacts

State = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Verdict:
    """A condition before it is stamped with generation and time."""

    type: str
    status: State
    reason: str
    message: str


def accepted(problem: SpecError | None, paused: bool, queued: bool) -> Verdict:
    if problem is not None:
        return Verdict("Accepted", "False", problem.reason, problem.message)
    if paused:
        return Verdict("Accepted", "True", "Paused", "spec.paused is true: children stay as they are")
    if queued:
        waits = "new workers, because the operator or its settings changed, wait until other services have theirs"
        return Verdict("Accepted", "True", "RolloutQueued", waits)
    return Verdict("Accepted", "True", "Accepted", "the spec is carried out")


def model_ready(pools: Sequence[PoolFacts]) -> Verdict:
    for pool in pools:
        if pool.problem is not None and pool.problem.reason == "ModelLoadFailed":
            return Verdict("ModelReady", "False", "ModelLoadFailed", _of(pool, pool.problem.message))
    if any(pool.ready for pool in pools):
        return Verdict("ModelReady", "True", "Loaded", "the model is loaded and has spoken")
    return Verdict("ModelReady", "Unknown", "Loading", "no worker has loaded the model yet")


def available(pools: Sequence[PoolFacts]) -> Verdict:
    ready = sum(pool.ready for pool in pools)
    if ready:
        return Verdict("Available", "True", "WorkersReady", "at least one worker serves")
    return Verdict("Available", "False", "NoWorkerReady", "no worker is ready")


def scaling_active(pools: Sequence[PoolFacts], provider: str, metrics_owner: str) -> Verdict:
    """`metrics_owner` is who else serves custom.metrics.k8s.io; empty: nobody."""
    if provider == "None":
        return Verdict("ScalingActive", "False", "Disabled", "spec.autoscaling.provider is None")
    for pool in pools:
        if pool.scaling_problem is not None and provider == "HPA" and metrics_owner:
            return Verdict("ScalingActive", "False", "MetricsAPIOwnedByOther", _of(pool, _foreign(metrics_owner)))
        if pool.scaling_problem is not None:
            reason, message = pool.scaling_problem
            return Verdict("ScalingActive", "False", reason, _of(pool, message))
    if not all(pool.scaling_known for pool in pools):
        return Verdict("ScalingActive", "Unknown", "Starting", "an autoscaler has not read its metrics yet")
    return Verdict("ScalingActive", "True", "ReadingsPresent", "every pool's autoscaler has its readings")


def rollout_blocked(pools: Sequence[PoolFacts]) -> Verdict:
    """Only while a rollout goes on; what keeps a pool from growing later is in its `limitedBy`."""
    for pool in pools:
        if pool.rolling and pool.problem is not None and pool.problem.due_in <= 0:
            return Verdict("RolloutBlocked", "True", pool.problem.reason, _of(pool, pool.problem.message))
    return Verdict("RolloutBlocked", "False", "NotBlocked", "no rollout is held up")


def capacity_shortfall(pools: Sequence[PoolFacts]) -> Verdict:
    """The maximum of workers follows from the catalogue and is never raised by what the workers measure."""
    short = [pool for pool in pools if pool.workers_needed > pool.plan.max_workers]
    if not short:
        return Verdict("CapacityShortfall", "False", "Enough", "the streams asked for fit the workers allowed")
    sentences = [
        _of(
            pool,
            f"{pool.plan.pool.concurrency.max if pool.plan.pool.concurrency else 0} streams need "
            f"{pool.workers_needed} workers of {pool.streams_per_worker} streams as measured, "
            f"the maximum is {pool.plan.max_workers}; set streamsPerWorker to {pool.streams_per_worker}",
        )
        for pool in short
    ]
    return Verdict("CapacityShortfall", "True", "MeasuredBelowPlan", "; ".join(sentences))


def ready(pools: Sequence[PoolFacts], problem: SpecError | None) -> Verdict:
    if problem is not None:
        return Verdict("Ready", "False", problem.reason, f"what ran before keeps running: {problem.message}")
    missing = [pool for pool in pools if pool.ready < pool.plan.min_workers]
    if missing:
        sentences = [
            _of(pool, f"{pool.ready} of at least {pool.plan.min_workers} workers ready")
            + (f" ({pool.problem.reason}: {pool.problem.message})" if pool.problem else "")
            for pool in missing
        ]
        return Verdict("Ready", "False", "PoolsNotReady", "; ".join(sentences))
    return Verdict("Ready", "True", "AllPoolsReady", "every pool has at least its minimum of workers ready")


def _foreign(owner: str) -> str:
    return (
        f"custom.metrics.k8s.io is served by {owner}, which has no readings of this pool; set "
        "spec.autoscaling.provider to KEDA, or give that server the rules of docs/autoscaling.md, or remove it"
    )


def _of(pool: PoolFacts, message: str) -> str:
    return f"pool {pool.plan.pool.name}: {message}"
