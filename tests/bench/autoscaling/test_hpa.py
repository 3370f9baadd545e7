"""The model of the HPA controller, rule by rule."""

from __future__ import annotations

import pytest

from tests.bench.autoscaling.hpa import Autoscaler, Metric, Policy, Rules, proposal

FREE = Rules(0, (Policy("Pods", 1000, 1),))


def autoscaler(up: Rules = FREE, down: Rules = FREE) -> Autoscaler:
    return Autoscaler(1, 100, up, down)


def load(total: float | None) -> list[Metric]:
    return [Metric(total, 0.8)]


@pytest.mark.parametrize(
    ("replicas", "total", "asked"), [(1, 4.0, 5), (5, 4.0, 5), (5, 4.39, 5), (5, 4.41, 6), (5, 0.0, 0)]
)
def test_the_sum_over_the_target_is_asked_for_outside_of_the_tolerance(replicas: int, total: float, asked: int) -> None:
    assert proposal(replicas, load(total)) == asked


def test_the_largest_proposal_wins() -> None:
    assert proposal(2, [Metric(1.6, 0.8), Metric(4.0, 0.8)]) == 5


def test_without_a_number_nothing_changes() -> None:
    assert proposal(5, load(None)) is None


@pytest.mark.parametrize(("total", "asked"), [(0.8, None), (8.0, 10)])
def test_a_failing_metric_stops_scaling_down_but_not_up(total: float, asked: int | None) -> None:
    assert proposal(5, [Metric(total, 0.8), Metric(None, 0.8)]) == asked


def test_never_beyond_minimum_and_maximum() -> None:
    assert autoscaler().decide(0, 5, load(0)) == 1
    assert autoscaler().decide(0, 5, load(1000)) == 100


def test_scaling_down_waits_for_the_highest_of_its_window() -> None:
    patient = autoscaler(down=Rules(60, FREE.policies))
    assert patient.decide(0, 5, load(4.0)) == 5
    assert patient.decide(59, 5, load(0.8)) == 5
    assert patient.decide(61, 5, load(0.8)) == 1


def test_scaling_up_waits_for_the_lowest_of_its_window() -> None:
    patient = autoscaler(up=Rules(60, FREE.policies))
    assert patient.decide(0, 1, load(0.8)) == 1
    assert patient.decide(30, 1, load(4.0)) == 1
    assert patient.decide(61, 1, load(4.0)) == 5


def test_policies_limit_the_change_within_their_period() -> None:
    slow = autoscaler(down=Rules(0, (Policy("Pods", 1, 120),)))
    assert slow.decide(0, 5, load(0)) == 4
    assert slow.decide(60, 4, load(0)) == 4
    assert slow.decide(121, 4, load(0)) == 3


def test_the_more_permissive_policy_counts_unless_the_other_is_chosen() -> None:
    both = (Policy("Pods", 2, 60), Policy("Percent", 100, 60))
    assert autoscaler(up=Rules(0, both)).decide(0, 5, load(80)) == 10
    assert autoscaler(up=Rules(0, both, "Min")).decide(0, 5, load(80)) == 7
