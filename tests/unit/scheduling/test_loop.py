"""The engine's thread on a real tiny model: who comes in, who leaves, what a crash does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from cosyvoice_worker.engine.audio_runner import AudioRunner
from cosyvoice_worker.engine.engine import Engine, Pcm
from cosyvoice_worker.engine.frontend.job import Frontend
from cosyvoice_worker.engine.requests import Refused, SynthesisFailed, Usage
from cosyvoice_worker.engine.sequences import Job
from cosyvoice_worker.engine.sizing import size_for
from cosyvoice_worker.scheduling.admission import Bounds
from cosyvoice_worker.scheduling.loop import CRASHES_BEFORE_DEAD, EngineLoop, Ticket
from cosyvoice_worker.scheduling.service import make_engine
from tests.unit.engine.tiny import alone, model, request

SHORT = "Hi there you."
LONG = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."
BOUNDS = Bounds(max_running=2, max_queued=2, queue_seconds=60.0)


class Collected:
    """A sink that a test can wait on."""

    def __init__(self) -> None:
        self.pieces: list[Pcm] = []
        self.end: Usage | Exception | None = None
        self.begun, self.ended = threading.Event(), threading.Event()

    def put(self, item: Pcm | Usage | Exception) -> None:
        assert self.end is None, "nothing follows the end"
        if isinstance(item, np.ndarray):
            self.pieces.append(item)
            self.begun.set()
        else:
            self.end = item
            self.ended.set()

    def usage(self) -> Usage:
        assert self.ended.wait(60)
        assert isinstance(self.end, Usage), self.end
        return self.end


class Worker:
    def __init__(self, bounds: Bounds, make: Callable[[], Engine], *, memory_guard: bool = False) -> None:
        loaded = model()
        sizing = size_for(loaded)
        self.frontend = Frontend(loaded.tokenizer, 2, sizing.longest, sizing.max_speech_tokens)
        self.clock = 0.0
        self.loop = EngineLoop(
            make, bounds, capacity_seed=10.0, clock=lambda: self.clock, memory_guard=lambda: memory_guard
        )
        self.loop.start()

    def submit(self, text: str = SHORT, seed: int = 1) -> tuple[Ticket, Collected]:
        sink = Collected()
        return self.loop.submit(self.frontend.job(request(text, seed=seed), self.clock), sink), sink


Start = Callable[..., Worker]


@pytest.fixture
def start() -> Iterator[Start]:
    workers: list[Worker] = []

    def started(
        bounds: Bounds = BOUNDS, make: Callable[[], Engine] | None = None, *, memory_guard: bool = False
    ) -> Worker:
        loaded = model()
        make = make or (lambda: make_engine(loaded, size_for(loaded, max_running=2)))
        workers.append(Worker(bounds, make, memory_guard=memory_guard))
        return workers[-1]

    yield started
    for worker in workers:
        worker.loop.stop()


def test_a_request_is_spoken_and_accounted_for(start: Start) -> None:
    worker = start()
    _, sink = worker.submit()
    usage = sink.usage()
    single = alone(SHORT, 1, 0, True)
    assert usage.speech_tokens == len(single.tokens[0])
    assert usage.audio_seconds == pytest.approx(sum(map(len, sink.pieces)) / 24000)
    reading = worker.loop.reading()
    assert (reading.running, reading.queued, reading.kv_blocks_used) == (0, 0, 0)
    assert reading.demand == pytest.approx(usage.audio_seconds / 30)
    worker.clock += 31
    assert worker.loop.reading().demand == 0.0


def test_what_does_not_fit_is_refused_at_once_and_counts_as_demand(start: Start) -> None:
    worker = start()
    sinks = [worker.submit(seed=seed)[1] for seed in range(4)]
    before = worker.loop.reading().demand
    with pytest.raises(Refused) as refused:
        worker.submit()
    assert refused.value.reason == "QueueFull"
    assert refused.value.retry_after >= 1
    assert worker.loop.reading().demand > before
    for sink in sinks:
        sink.usage()
    worker.submit()[1].usage()


def test_under_the_memory_guard_new_work_waits_for_what_runs_and_all_of_it_is_spoken(start: Start) -> None:
    worker = start(memory_guard=True)
    tickets = [worker.submit(seed=seed) for seed in range(3)]
    ran: list[int] = []
    while not all(sink.ended.is_set() for _, sink in tickets):
        ran.append(worker.loop.reading().running)
        time.sleep(0.001)
    for _, sink in tickets:
        sink.usage()
    assert max(ran) == 1, "there is a second place, but no memory"


def test_who_leaves_is_told_no_more_and_frees_his_place(start: Start) -> None:
    worker = start()
    ticket, sink = worker.submit(LONG)
    assert sink.begun.wait(60)
    worker.loop.cancel(ticket)
    worker.loop.cancel(ticket)
    heard = len(sink.pieces)
    worker.submit()[1].usage()
    assert sink.end is None
    assert len(sink.pieces) <= heard + 1, "at most what was on its way"
    assert worker.loop.reading().kv_blocks_used == 0


def test_who_leaves_the_queue_is_never_begun(start: Start) -> None:
    worker = start(Bounds(max_running=1, max_queued=2, queue_seconds=60.0))
    _, first = worker.submit(LONG)
    ticket, queued = worker.submit()
    worker.loop.cancel(ticket)
    first.usage()
    worker.submit()[1].usage()
    assert queued.pieces == []
    assert not ticket.job.started


def test_who_waits_too_long_in_the_queue_is_refused_there(start: Start) -> None:
    worker = start(Bounds(max_running=1, max_queued=2, queue_seconds=60.0))
    _, first = worker.submit(LONG)
    _, queued = worker.submit()
    assert first.begun.wait(60)
    worker.clock += 61
    assert queued.ended.wait(60)
    assert isinstance(queued.end, Refused)
    assert queued.end.retry_after > 1, "from the work that is left: it waits for a long request"
    first.usage()


def test_text_that_comes_in_pieces_is_spoken_as_it_comes(start: Start) -> None:
    worker = start()
    job = worker.frontend.open_job(request(seed=1), 0.0)
    sink = Collected()
    ticket = worker.loop.submit(job, sink)
    worker.loop.extend(ticket, worker.frontend.sentences(job, "Hi there you."), complete=False)
    assert sink.begun.wait(60)
    before = worker.loop.engine.counters.steps
    while worker.loop.engine.working:
        time.sleep(0.01)
        before = worker.loop.engine.counters.steps
    time.sleep(0.1)
    assert worker.loop.engine.counters.steps <= before + 1, "a job that waits for text costs nothing"
    assert not sink.ended.is_set()
    worker.submit()[1].usage()
    worker.loop.extend(ticket, worker.frontend.sentences(job, "You."), complete=True)
    usage = sink.usage()
    assert job.sentences[0].tokens == alone(SHORT, 1, 0, True).tokens[0]
    assert usage.speech_tokens == sum(len(s.tokens) for s in job.sentences)
    worker.loop.extend(ticket, worker.frontend.sentences(job, "More."), complete=True)
    assert worker.loop.reading().running == 0


def test_a_job_without_a_word_ends_with_nothing_used(start: Start) -> None:
    worker = start()
    sink = Collected()
    ticket = worker.loop.submit(worker.frontend.open_job(request(seed=1), 0.0), sink)
    worker.loop.extend(ticket, [], complete=True)
    assert sink.usage() == Usage(0, 0, 0.0)


def test_who_waits_behind_idle_jobs_is_refused_in_time(start: Start) -> None:
    worker = start(Bounds(max_running=1, max_queued=2, queue_seconds=60.0))
    idle = Collected()
    ticket = worker.loop.submit(worker.frontend.open_job(request(seed=1), 0.0), idle)
    while not worker.loop.reading().running:
        time.sleep(0.01)
    _, queued = worker.submit()
    worker.clock += 61
    assert queued.ended.wait(60)
    assert isinstance(queued.end, Refused)
    worker.loop.cancel(ticket)
    worker.submit()[1].usage()
    assert idle.end is None


def test_draining_takes_nothing_and_finishes_what_it_has(start: Start) -> None:
    worker = start(Bounds(max_running=1, max_queued=2, queue_seconds=60.0))
    sinks = [worker.submit(seed=seed)[1] for seed in range(2)]
    drained: list[bool] = []
    thread = threading.Thread(target=lambda: drained.append(worker.loop.drain(60)))
    thread.start()
    while not worker.loop.reading().draining:
        time.sleep(0.001)
    with pytest.raises(Refused) as refused:
        worker.submit()
    assert refused.value.reason == "Draining"
    thread.join(60)
    assert drained == [True]
    for sink in sinks:
        sink.usage()


def test_a_drain_that_takes_too_long_says_so_and_stopping_fails_the_rest(start: Start) -> None:
    worker = start()
    _, sink = worker.submit(LONG)
    assert worker.loop.drain(0.0) is False
    worker.loop.stop()
    assert isinstance(sink.end, SynthesisFailed)
    assert not worker.loop.alive
    with pytest.raises(Refused):
        worker.submit()


def crashing(times: int) -> Callable[[], Engine]:
    """Engines of which the first `times` fall over at their third step."""
    made = 0

    def make() -> Engine:
        nonlocal made
        made += 1
        loaded = model()
        engine = make_engine(loaded, size_for(loaded, max_running=2))
        if made <= times:
            step, steps = engine.step, 0

            def faulty() -> object:
                nonlocal steps
                steps += 1
                if steps == 3:
                    raise RuntimeError("a bug in the engine")
                return step()

            engine.step = faulty  # type: ignore[method-assign, assignment]
        return engine

    return make


def test_a_crash_of_the_loop_fails_what_runs_at_once_and_starts_again(start: Start) -> None:
    worker = start(make=crashing(1))
    _, sink = worker.submit()
    assert sink.ended.wait(60)
    assert isinstance(sink.end, SynthesisFailed)
    assert worker.loop.alive
    _, again = worker.submit()
    again.usage()
    same = alone(SHORT, 1, 0, True)
    np.testing.assert_allclose(np.concatenate(again.pieces), same.pcm, atol=5e-3)


def failed(sink: Collected) -> bool:
    return sink.ended.wait(60) and isinstance(sink.end, SynthesisFailed)


def taken(worker: Worker, count: int) -> list[Collected]:
    """`count` requests at once, less those that come so late that a dead engine refuses them."""
    sinks: list[Collected] = []
    for seed in range(count):
        with contextlib.suppress(Refused):
            sinks.append(worker.submit(seed=seed)[1])
    assert sinks
    return sinks


def test_crashes_in_a_row_turn_liveness_off_and_leave_nobody_waiting(start: Start) -> None:
    worker = start(Bounds(max_running=1, max_queued=2, queue_seconds=60.0), make=crashing(CRASHES_BEFORE_DEAD))
    for _ in range(CRASHES_BEFORE_DEAD - 1):
        assert worker.loop.alive
        assert failed(worker.submit()[1])
    assert all(failed(sink) for sink in taken(worker, 2))
    assert not worker.loop.alive
    with pytest.raises(Refused):
        worker.submit()
    began = time.monotonic()
    assert worker.loop.drain(60), "nothing is left"
    assert time.monotonic() - began < 5


def test_an_engine_that_cannot_be_made_again_fails_what_runs_and_what_waits(start: Start) -> None:
    make = crashing(1)
    made: list[Engine] = []
    all_wait = threading.Event()

    def once() -> Engine:
        if made:
            all_wait.wait(60)
            assert made[0].llm.cache.data.numel() == 0, "the old cache is given back before the new one is made"
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        made.append(make())
        return made[0]

    worker = start(Bounds(max_running=1, max_queued=2, queue_seconds=60.0), make=once)
    sinks = [worker.submit(seed=seed)[1] for seed in range(3)]
    all_wait.set()
    assert all(failed(sink) for sink in sinks)
    assert not worker.loop.alive
    assert worker.loop.drain(60)


def test_a_fault_between_two_steps_is_a_crash_like_any_other(start: Start) -> None:
    worker = start()
    worker.submit()[1].usage()
    engine = worker.loop.engine

    def faulty(job: Job) -> None:
        raise RuntimeError("a bug between two steps")

    engine.add = faulty  # type: ignore[method-assign]
    assert failed(worker.submit()[1])
    worker.submit()[1].usage()
    assert worker.loop.alive
    assert worker.loop.engine is not engine, "what came after was served by a new one"
    assert worker.loop.engine.counters.restarts == 1


def test_a_device_that_is_lost_ends_the_thread_and_not_request_by_request(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = False

    def run(self: AudioRunner, windows: object) -> list[Pcm]:
        nonlocal lost
        lost = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def make() -> Engine:
        if lost:  # what every later call on the device says
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        loaded = model()
        return make_engine(loaded, size_for(loaded, max_running=2))

    monkeypatch.setattr(AudioRunner, "run", run)
    worker = start(make=make)
    assert all(failed(sink) for sink in taken(worker, 3))
    assert not worker.loop.alive


def test_a_step_that_does_not_end_turns_liveness_off(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stuck(self: AudioRunner, windows: object) -> list[Pcm]:
        entered.set()
        leave.wait(60)
        raise RuntimeError("woken")

    monkeypatch.setattr(AudioRunner, "run", stuck)
    worker = start()
    _, sink = worker.submit()
    assert entered.wait(60)
    assert worker.loop.alive
    worker.clock += 121
    assert not worker.loop.alive
    began = time.monotonic()
    assert not worker.loop.drain(60)
    assert time.monotonic() - began < 5, "it will not end: nobody waits out the drain time for it"
    leave.set()
    assert sink.ended.wait(60)
    assert worker.loop.alive


def test_an_engine_that_does_not_come_back_after_a_crash_turns_liveness_off(start: Start) -> None:
    entered, leave = threading.Event(), threading.Event()
    make = crashing(1)
    made = 0

    def hanging() -> Engine:
        nonlocal made
        made += 1
        if made == 2:
            entered.set()
            leave.wait(60)
        return make()

    worker = start(make=hanging)
    assert failed(worker.submit()[1])
    assert entered.wait(60)
    assert worker.loop.alive
    worker.clock += 121
    assert not worker.loop.alive
    leave.set()
    worker.submit()[1].usage()
    assert worker.loop.alive
