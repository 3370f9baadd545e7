"""A slot for a rollout is free when the rollout has done what it can."""

from __future__ import annotations

from cosyvoice_operator.runtime.throttle import RolloutThrottle

A, B = ("n", "a"), ("n", "b")


def test_on_a_full_cluster_a_rollout_is_over_with_as_many_workers_as_before() -> None:
    throttle = RolloutThrottle(1)
    assert throttle.admit(A, ready=3)
    assert not throttle.admit(B, ready=1)
    throttle.done(A, 2, enough=False)
    assert not throttle.admit(B, ready=1), "a worker is still coming up"
    throttle.done(A, 3, enough=False)
    assert throttle.admit(B, ready=1)


def test_a_minimum_of_workers_is_enough() -> None:
    throttle = RolloutThrottle(1)
    assert throttle.admit(A, ready=8)
    throttle.done(A, 2, enough=True)
    assert throttle.admit(B, ready=1)


def test_a_service_that_asks_again_keeps_its_slot_and_its_number() -> None:
    throttle = RolloutThrottle(1)
    assert throttle.admit(A, ready=3)
    assert throttle.admit(A, ready=0)
    throttle.done(A, 2, enough=False)
    assert not throttle.admit(B, ready=1)
