"""A worker's way to being ready, and out of it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cosyvoice_worker.engine.recorded_voices import RecordedVoices
from cosyvoice_worker.lifecycle import Engine, Worker
from cosyvoice_worker.scheduling import service as scheduling
from cosyvoice_worker.scheduling.service import Options, SpeechService
from cosyvoice_worker.settings import Settings, read_settings
from tests.unit.engine.tiny import model, voice


def worker() -> tuple[Worker, SpeechService]:
    service = SpeechService(model(), Options("tiny", max_running=2))

    async def load(_: Settings) -> Engine:
        return Engine(service, (voice(),), RecordedVoices(model().recordings), None)

    return Worker(read_settings(["--model-dir", "tiny", "--device", "cpu"]), load), service


def engine_threads() -> int:
    return sum(thread.name == "engine" for thread in threading.enumerate())


async def test_a_warm_up_that_is_cancelled_ends_its_thread() -> None:
    starting, service = worker()
    task = asyncio.create_task(starting.start())
    while not service.alive:  # noqa: ASYNC110 - a thread changes it
        await asyncio.sleep(0.001)
    assert starting.phase == "WarmingUp"
    before = engine_threads()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine_threads() == before - 1
    assert not starting.ready


async def test_a_worker_whose_engine_is_dead_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "CALIBRATION_SECONDS", 0.0)
    serving, service = worker()
    await serving.start()
    assert serving.ready
    await service.stop()
    assert serving.phase == "Ready"
    assert not serving.ready
    assert not serving.alive
