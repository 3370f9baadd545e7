"""A replica is alive as long as its watches bring what is written to the Lease."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.runtime.leadership import DEAF_AFTER_SECONDS, TURN_SECONDS, Leadership


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def leadership(clock: Clock) -> Leadership:
    return Leadership(ApiServer(Configuration()), "n", "lease", "me", clock)


def lease(version: int) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "spec": {}}


async def test_a_change_that_no_watch_brings_makes_it_deaf(clock: Clock) -> None:
    replica = await leadership(clock)
    assert replica.alive
    replica._know(lease(1))
    write(replica, clock, DEAF_AFTER_SECONDS - TURN_SECONDS)
    assert replica.alive
    write(replica, clock, TURN_SECONDS)
    assert not replica.alive
    assert replica.deaf_for == DEAF_AFTER_SECONDS


async def test_an_api_server_that_is_away_makes_nobody_deaf(clock: Clock) -> None:
    replica = await leadership(clock)
    replica._know(lease(1))
    write(replica, clock, TURN_SECONDS)
    clock.now += 120
    assert replica.alive, "no request was answered meanwhile, so no watch could bring anything"
    replica._know(lease(100))
    assert replica.alive, "it is back, and the watches are about to be"
    write(replica, clock, DEAF_AFTER_SECONDS)
    assert not replica.alive, "they never came back"


def write(replica: Leadership, clock: Clock, seconds: float) -> None:
    """The Lease changes at every turn, and no watch tells."""
    for _ in range(int(seconds / TURN_SECONDS)):
        clock.now += TURN_SECONDS
        replica._know(lease(int(clock.now)))


async def test_what_the_watch_brings_makes_it_hear_again(clock: Clock) -> None:
    replica = await leadership(clock)
    replica._know(lease(1))
    clock.now += DEAF_AFTER_SECONDS * 2
    replica.seen()
    assert replica.alive
    assert replica.deaf_for == 0


async def test_a_lease_that_nobody_changes_proves_nothing(clock: Clock) -> None:
    replica = await leadership(clock)
    replica._know(lease(1))
    replica.seen()
    clock.now += DEAF_AFTER_SECONDS * 2
    replica._know(lease(1))
    assert replica.alive, "without a write there is nothing to hear"
