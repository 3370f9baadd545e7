"""The queue: one pass at a time for a key, a later one for what failed, and no key waits for another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from cosyvoice_operator.runtime import queue as module
from cosyvoice_operator.runtime.queue import WorkQueue


@asynccontextmanager
async def running(work: Callable[[str], Awaitable[float | None]]) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue[str](work)
    task = asyncio.create_task(queue.run(workers=2))
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the queue has no event to wait for, on purpose
            await asyncio.sleep(0.005)


async def test_a_key_that_is_added_twice_while_it_waits_is_worked_on_once() -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    async with running(work) as queue:
        queue.add("a")
        queue.add("a")
        queue.add("b")
        await until(lambda: queue.idle and len(done) >= 2)
    assert sorted(done) == ["a", "b"]


async def test_a_key_that_changes_during_its_pass_gets_another_and_never_two_at_once() -> None:
    gate = asyncio.Event()
    passes = 0
    together = 0

    async def work(key: str) -> None:
        nonlocal passes, together
        together += 1
        assert together == 1
        passes += 1
        await gate.wait()
        together -= 1

    async with running(work) as queue:
        queue.add("a")
        await until(lambda: passes == 1)
        queue.add("a")
        queue.add("a")
        gate.set()
        await until(lambda: queue.idle)
    assert passes == 2


async def test_what_fails_comes_again_later_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.02)
    attempts: list[float] = []
    others = 0

    async def work(key: str) -> None:
        nonlocal others
        if key == "good":
            others += 1
            return
        attempts.append(asyncio.get_running_loop().time())
        if len(attempts) < 4:
            raise RuntimeError("not yet")

    async with running(work) as queue:
        queue.add("bad")
        queue.add("good")
        await until(lambda: others == 1)
        await until(lambda: len(attempts) == 4)
    waits = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert waits[0] >= 0.015
    assert waits[1] >= 0.035
    assert waits[2] >= 0.075


async def test_work_can_ask_to_be_looked_at_again() -> None:
    passes = 0

    async def work(key: str) -> float | None:
        nonlocal passes
        passes += 1
        return 0.01 if passes == 1 else None

    async with running(work) as queue:
        queue.add("a")
        await until(lambda: passes == 2)
        assert queue.idle
