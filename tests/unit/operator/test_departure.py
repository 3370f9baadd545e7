"""Who goes first: the emptiest, and only while the autoscaler wants fewer."""

from __future__ import annotations

from typing import Any

import pytest

from cosyvoice_operator.observed.departure import FIRST, Marks, marks, wants_fewer


def worker(uid: str, cost: str = "", going: bool = False) -> dict[str, Any]:
    metadata = {"name": uid, "uid": uid} | ({"deletionTimestamp": "now"} if going else {})
    return {"metadata": metadata, "deletion_cost": cost}


def names(change: Marks) -> tuple[str | None, list[str]]:
    return change.set and change.set["metadata"]["uid"], [pod["metadata"]["uid"] for pod in change.clear]


WORK = {"a": 3, "b": 1, "c": 2}


def test_the_emptiest_is_marked_and_no_other() -> None:
    pods = [worker("a"), worker("b"), worker("c", FIRST)]
    assert names(marks(pods, WORK, fewer=True)) == ("b", ["c"])


def test_the_mark_stays_where_it_is_among_equals() -> None:
    pods = [worker("a"), worker("b", FIRST)]
    assert names(marks(pods, {"a": 0, "b": 0}, fewer=True)) == (None, [])


def test_the_mark_is_taken_back_when_nobody_wants_fewer() -> None:
    pods = [worker("a"), worker("b", FIRST)]
    assert names(marks(pods, WORK, fewer=False)) == (None, ["b"])


def test_who_goes_already_is_not_marked_and_the_last_one_neither() -> None:
    assert names(marks([worker("a"), worker("b", going=True), worker("c")], WORK, fewer=True)) == ("c", [])
    assert names(marks([worker("a"), worker("b", going=True)], WORK, fewer=True)) == (None, [])


def test_of_a_silent_worker_nothing_is_known() -> None:
    assert names(marks([worker("a"), worker("silent")], WORK, fewer=True)) == ("a", [])
    assert names(marks([worker("x"), worker("y")], {}, fewer=True)) == (None, [])


def test_an_order_of_the_users_own_is_respected() -> None:
    assert names(marks([worker("a", "50"), worker("b", FIRST)], WORK, fewer=True)) == (None, ["b"])


@pytest.mark.parametrize(
    ("status", "fewer"),
    [
        ({"conditions": [{"type": "AbleToScale", "status": "True", "reason": "ScaleDownStabilized"}]}, True),
        ({"conditions": [{"type": "ScalingLimited", "status": "True", "reason": "ScaleDownLimit"}]}, True),
        ({"currentReplicas": 3, "desiredReplicas": 2}, True),
        ({"currentReplicas": 2, "desiredReplicas": 3}, False),
        ({"conditions": [{"type": "ScalingLimited", "status": "True", "reason": "TooFewReplicas"}]}, False),
        ({"conditions": [{"type": "AbleToScale", "status": "True", "reason": "ReadyForNewScale"}]}, False),
        ({}, False),
    ],
)
def test_the_autoscaler_says_that_it_wants_fewer(status: dict[str, Any], fewer: bool) -> None:
    assert wants_fewer({"status": status}) is fewer
    assert not wants_fewer(None)
