"""A queue of keys: each is worked on by one worker at a time, and comes again later if its work failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 300.0

logger = logging.getLogger(__name__)


class WorkQueue(Generic[Key]):
    """Level-triggered: a key that is added while it waits is worked on once, while it is worked on once more."""

    def __init__(self, work: Callable[[Key], Awaitable[float | None]]) -> None:
        """`work` returns the seconds after which to look again by itself, or None; what it raises is retried."""
        self._work = work
        self._waiting: dict[Key, None] = {}
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    @property
    def depth(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs; a retry or a recheck may still be due later."""
        return self.depth == 0

    def add(self, key: Key) -> None:
        if key in self._running:
            self._again.add(key)
        else:
            self._waiting.setdefault(key)
            self._wake.set()

    async def run(self, workers: int) -> None:
        """Work for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            key = next(iter(self._waiting))
            del self._waiting[key]
            self._running.add(key)
            self._cancel_timer(key)
            try:
                delay = await self._work(key)
                self._failures.pop(key, None)
            except Exception as error:
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                delay = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** (failures - 1))
                logger.warning("%s: %s; again in %.1f s", key, error or type(error).__name__, delay)
                logger.debug("%s", key, exc_info=error)
            finally:
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            elif delay is not None:
                self._add_later(key, delay)

    def _add_later(self, key: Key, delay: float) -> None:
        self._timers[key] = asyncio.get_running_loop().call_later(delay, self.add, key)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
