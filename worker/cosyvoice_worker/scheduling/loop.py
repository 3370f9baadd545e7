"""The engine's thread: takes requests from the queue, runs step after step, hands audio to the streams.

Everything that other threads touch is guarded by one condition, held only for bookkeeping; steps run outside of it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from cosyvoice_worker.engine.engine import Audio, Engine, Event, Failed, Pcm
from cosyvoice_worker.engine.requests import Reading, Refused, SynthesisFailed, Usage
from cosyvoice_worker.engine.sequences import TOKENS_PER_SECOND, Job, Phase, Sequence
from cosyvoice_worker.scheduling.admission import (
    DUE_SECONDS,
    Bounds,
    Occupancy,
    expired,
    may_start,
    refusal,
    retry_after,
)
from cosyvoice_worker.scheduling.meters import Asked, CapacityMeter, DemandMeter, SpeechRate

log = logging.getLogger(__name__)

STUCK_SECONDS = 120.0
"""A step that takes longer will not end: liveness turns off."""
CRASHES_BEFORE_DEAD = 5
"""Crashes of the loop in a row, without one finished request between, after which a restart of the process is due."""
JOIN_SECONDS = 5.0
"""Stopping waits at most that long for a step to end; the process ends anyway."""
PRESSED_SECONDS = 5.0
"""After a refusal the worker counts as full for so long: about what who was refused waits before he comes again."""
QUEUE_LOOK_SECONDS = 0.5
"""How often the queue is looked at while nothing runs but jobs that wait for text."""
PUT_BACK_LOOK_SECONDS = 0.02
"""... and while all that runs is put back for lack of memory."""
STUTTER_SECONDS = 0.3
"""A playing stream with less than that in hand goes before new ones."""


class Sink(Protocol):
    """Where a request's audio goes; called from the engine's thread and must not block."""

    def put(self, item: Pcm | Usage | Exception) -> None: ...


@dataclass(eq=False, slots=True)
class Ticket:
    """A request from admission to its end."""

    job: Job
    sink: Sink
    estimate: float
    """Audio seconds expected when it came in."""
    asked: Asked | None
    """Its share of demand; None for the worker's own warm-up."""
    cancelled: bool = False
    arrived: list[Sequence] = field(default_factory=list)
    """Sentences that came after the job, not yet given to the engine."""
    complete: bool = True
    """No more text follows `arrived`."""

    @property
    def remaining(self) -> float:
        """Audio seconds still to be made, as far as is known now."""
        total = self.estimate
        if all(s.phase in (Phase.FINISHING, Phase.DONE) for s in self.job.sentences):
            total = self.job.speech_tokens / TOKENS_PER_SECOND / self.job.request.speed
        return max(0.0, total - self.job.delivered_seconds)


class EngineLoop:
    def __init__(
        self,
        make_engine: Callable[[], Engine],
        bounds: Bounds,
        capacity_seed: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        memory_guard: Callable[[], bool] = lambda: False,
        unread_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`make_engine` is called again after a crash. `memory_guard` says whether new work should wait,
        `unread_bytes` how much audio the readers have left; both from any thread."""
        self._make_engine = make_engine
        self._clock = clock
        self._bounds = bounds
        self._memory_guard = memory_guard
        self._unread_bytes = unread_bytes
        self._engine = make_engine()
        self._queue: deque[Ticket] = deque()
        self._running: dict[Job, Ticket] = {}
        self._changed = threading.Condition()
        self._draining = self._stopping = False
        self._step_began: float | None = None
        self._crashes = 0
        self._refused_at = -math.inf
        self.demand = DemandMeter()
        self.capacity = CapacityMeter(capacity_seed, clock())
        self.speech_rate = SpeechRate()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # --- from any thread ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job, sink: Sink, *, metered: bool = True) -> Ticket:
        """Take a job into the queue, or raise `Refused` at once."""
        estimate = self._estimate(job)
        with self._changed:
            if metered and (refused := self._refused(estimate, job.request.retry_key)):
                raise refused
            if self._stopping or not self._thread.is_alive():
                raise Refused("Draining", 1.0)
            asked = self.demand.accepted(self._clock(), estimate, job.request.retry_key) if metered else None
            ticket = Ticket(job, sink, estimate, asked, complete=not job.open)
            self._queue.append(ticket)
            self._changed.notify_all()
        return ticket

    def would_refuse(self, text_tokens: int, retry_key: str) -> Refused | None:
        """What `submit` would raise for a text of about that length, before it is normalised; counted as it counts it.

        None promises nothing: others may come first.
        """
        with self._changed:
            return self._refused(self.speech_rate.estimate(text_tokens), retry_key)

    def extend(self, ticket: Ticket, sentences: list[Sequence], *, complete: bool) -> None:
        """More text for a job that was submitted open; `complete`: the last. Nothing happens once the job has ended."""
        with self._changed:
            ticket.arrived += sentences
            ticket.complete = ticket.complete or complete
            more = self._seconds(sentences, ticket.job)
            ticket.estimate += more
            if ticket.asked:
                ticket.asked.seconds += more
            self._changed.notify_all()

    def cancel(self, ticket: Ticket) -> None:
        """Nothing more is delivered from now on; what the job holds is freed before the next step."""
        with self._changed:
            ticket.cancelled = True
            self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Admit nothing more; wait until all that was admitted has ended. Blocks the calling thread.

        False at once where nothing will end any more: the thread is dead or stuck.
        """
        give_up = time.monotonic() + timeout
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            while self._queue or self._running:
                left = give_up - time.monotonic()
                if left <= 0 or not self.alive:
                    return False
                self._changed.wait(min(left, 1.0))
            return True

    def stop(self) -> None:
        """End the thread; what is left fails. Blocks for the length of a step, at most `JOIN_SECONDS`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)
        self._fail_all("the worker stopped")

    @property
    def alive(self) -> bool:
        """Whether the thread runs and makes progress. Off for good after a stop or too many crashes."""
        began = self._step_began
        stuck = began is not None and self._clock() - began > STUCK_SECONDS
        return self._thread.is_alive() and not stuck and not self._stopping

    def reading(self) -> Reading:
        with self._changed:
            pool = self._engine.llm.pool
            return Reading(
                demand=self.demand.demand(self._clock(), sum(t.remaining for t in self._tickets())),
                capacity=self.capacity.value,
                capacity_measured=self.capacity.measured,
                running=len(self._running),
                queued=len(self._queue),
                kv_blocks_used=pool.used,
                kv_blocks_total=pool.total,
                draining=self._draining,
            )

    @property
    def engine(self) -> Engine:
        """For counters and tests; its state belongs to the loop's thread."""
        return self._engine

    def _occupancy(self) -> Occupancy:
        return Occupancy(
            running=len(self._running),
            queued=len(self._queue),
            due_seconds=sum(min(t.remaining, DUE_SECONDS) for t in self._tickets()),
            capacity=self.capacity.value,
            draining=self._draining,
            memory_guard=self._memory_guard(),
            unread_bytes=self._unread_bytes(),
        )

    def _refused(self, seconds: float, retry_key: str) -> Refused | None:
        """Why a request for so much audio is not taken now; it counts as demand all the same."""
        no = refusal(self._occupancy(), self._bounds)
        if no is None:
            return None
        self._refused_at = self._clock()
        self.demand.refused(self._refused_at, seconds, retry_key)
        return Refused(no.reason, no.retry_after)

    def _tickets(self) -> Iterator[Ticket]:
        yield from self._running.values()
        yield from self._queue

    def _estimate(self, job: Job) -> float:
        return self._seconds(job.sentences, job)

    def _seconds(self, sentences: list[Sequence], job: Job) -> float:
        return self.speech_rate.estimate(sum(len(s.text_ids) for s in sentences)) / job.request.speed

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
                continue
            except Exception:
                log.exception("the engine loop crashed; what runs fails, and it starts again")
            self._crash()  # only here: the error's traceback holds the tensors of the step

    def _turn(self) -> None:
        with self._changed:
            pressed = self._turn_over()
            while not (self._engine.working or self._stopping):
                # Who waits in the queue for a place that an idle job holds may not wait for ever.
                self._changed.wait(QUEUE_LOOK_SECONDS if self._queue else None)
                pressed = self._turn_over()
            if self._stopping:
                return
        self._step(pressed)

    def _turn_over(self) -> bool:
        """Between steps: drop who left, start who may, add text that came. Returns whether work waits for its turn."""
        now = self._clock()
        for ticket in [t for t in self._running.values() if t.cancelled]:
            self._engine.end(ticket.job)
            self._end(ticket)
        for ticket in [t for t in self._queue if t.cancelled or expired(self._bounds, waited=now - t.job.arrived)]:
            self._queue.remove(ticket)
            if not ticket.cancelled:
                ticket.sink.put(Refused("QueueFull", retry_after(self._occupancy())))
                if ticket.asked:
                    self.demand.refused(now, ticket.estimate, ticket.job.request.retry_key)
            self._end(ticket)
        while self._queue:
            first = self._queue[0]
            stuttering = any(
                t.job.generating
                and t.job.first_audio is not None
                and t.job.request.streaming
                and t.job.in_hand(now) < STUTTER_SECONDS
                for t in self._running.values()
            )
            if not may_start(self._occupancy(), self._bounds, waited=now - first.job.arrived, stuttering=stuttering):
                break
            self._queue.popleft()
            self._running[first.job] = first
            self._engine.add(first.job)
        for ticket in list(self._running.values()):
            if ticket.arrived:
                ticket.job.extend(ticket.arrived, now)
                ticket.arrived = []
            if ticket.complete and ticket.job.open:
                for event in self._engine.close(ticket.job):
                    self._hand_over(ticket, event)
        full = len(self._running) >= self._bounds.max_running
        return bool(self._queue) or full or now - self._refused_at < PRESSED_SECONDS

    def _step(self, pressed: bool) -> None:
        self._step_began = began = self._clock()
        try:
            events = self._engine.step()
        finally:
            self._step_began = None
        seconds = 0.0
        for event in events:
            if isinstance(event, Audio):
                seconds += len(event.pcm) / self._engine.audio.sample_rate
            self._deliver(event)
        now = self._clock()
        self.capacity.step(now, now - began, seconds, pressed)
        if self._engine.idle:
            with self._changed:
                self._changed.wait(PUT_BACK_LOOK_SECONDS)

    def _deliver(self, event: Event) -> None:
        with self._changed:  # who stops meanwhile fails what is left, and nothing may follow that
            ticket = self._running.get(event.job)
            if ticket is not None:
                self._hand_over(ticket, event)

    def _hand_over(self, ticket: Ticket, event: Event) -> None:
        if isinstance(event, Audio):
            if not ticket.cancelled:
                ticket.sink.put(event.pcm)
            return
        job = event.job
        text_tokens = sum(len(s.text_ids) for s in job.sentences)
        self._end(ticket)
        if isinstance(event, Failed):
            ticket.sink.put(SynthesisFailed(event.reason))
        else:
            self._crashes = 0
            if text_tokens:
                self.speech_rate.learn(text_tokens, job.delivered_seconds * job.request.speed)
            ticket.sink.put(Usage(text_tokens, job.speech_tokens, job.delivered_seconds))

    def _end(self, ticket: Ticket) -> None:
        """Out of the books; demand learns what it came to."""
        self._running.pop(ticket.job, None)
        if ticket.asked:
            ticket.asked.seconds = ticket.job.delivered_seconds
        self._changed.notify_all()

    def _crash(self) -> None:
        """Fail what runs and make a new engine; after too many crashes in a row give up, and fail what waits too."""
        with self._changed:
            self._crashes += 1
            self._stopping = self._stopping or self._crashes >= CRASHES_BEFORE_DEAD
            self._fail_all("the engine crashed")
        if self._stopping:
            return
        self._step_began = self._clock()  # a device that hangs does so here as well
        try:
            self._engine.release()
            counters = self._engine.counters
            self._engine = self._make_engine()
            self._engine.counters = counters
            counters.restarts += 1
        except Exception:
            log.exception("the engine cannot be made again")
            with self._changed:
                self._stopping = True
                self._fail_all("the engine crashed and cannot be made again")
        finally:
            self._step_began = None

    def _fail_all(self, reason: str) -> None:
        """What runs fails; when stopping, what waits as well, as nobody will take it any more."""
        with self._changed:
            tickets = [*self._running.values(), *(self._queue if self._stopping else ())]
            if self._stopping:
                self._queue.clear()
            for ticket in tickets:
                ticket.sink.put(SynthesisFailed(reason))
                self._end(ticket)
