"""A replica is alive as long as its watches bring what is written to the Lease."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.runtime.leadership import DEAF_AFTER_SECONDS, Leadership


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
    clock.now += DEAF_AFTER_SECONDS / 2
    replica._know(lease(2))
    assert replica.alive
    clock.now += DEAF_AFTER_SECONDS / 2
    assert not replica.alive
    assert replica.deaf_for == DEAF_AFTER_SECONDS


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
