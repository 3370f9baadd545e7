"""The engine: schedule -> run -> hand out. One thread calls it; it never waits and knows no clients.

A fault of a batch is narrowed down by halving it, so that only the sentence that causes it fails; who only lacks
memory is put back and computed again, and so, in float32, is what half precision cannot hold. A fault of the device
itself is no sentence's: it is raised to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cosyvoice_worker.engine.audio_runner import AudioRunner
from cosyvoice_worker.engine.decoding import NOT_FINITE
from cosyvoice_worker.engine.faults import GIVE_UP, PUT_BACK, Faults, MemoryPressure, lacks_memory, narrowed
from cosyvoice_worker.engine.llm_runner import LlmRunner
from cosyvoice_worker.engine.scheduler import Chunking, Limits, Step, Window, plan
from cosyvoice_worker.engine.sequences import Job, Phase, Sequence

Row = TypeVar("Row")
T = TypeVar("T")
LONGEST_URGENT_SECONDS = 3.0
BATCH_WEIGHT = 0.2
PUT_BACK_SECONDS = 0.1
"""A sentence for which there is no memory, not even alone, is tried again after that, then after twice that, ..."""
PUT_BACK_AT_MOST = 6
"""... so many times, 6.3 s in all, before it fails."""
Pcm = NDArray[np.float32]
"""Samples in -1..1, (n,)."""


@dataclass(frozen=True, slots=True)
class Audio:
    job: Job
    pcm: Pcm


@dataclass(frozen=True, slots=True)
class Finished:
    job: Job


@dataclass(frozen=True, slots=True)
class Failed:
    job: Job
    reason: str


Event = Audio | Finished | Failed


@dataclass(slots=True)
class Counters:
    """What the engine has done since it was made, for metrics and the bench."""

    steps: int = 0
    llm_batches: int = 0
    llm_rows: int = 0
    llm_seconds: float = 0.0
    flow_rows: int = 0
    flow_batches: int = 0
    flow_frames: int = 0
    sound_seconds: float = 0.0
    speech_tokens: int = 0
    audio_seconds: float = 0.0
    not_finite: int = 0
    """Results that were not finite; in half precision they are computed again in float32."""
    preempted: int = 0
    restarts: int = 0
    """Engines that were made again after a crash."""
    faults: Faults = field(default_factory=Faults)


class Engine:
    """Owns the jobs that run. `step` advances all of them by one step and returns what came of it."""

    def __init__(
        self,
        llm: LlmRunner,
        audio: AudioRunner,
        limits: Limits,
        chunking: Chunking,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.llm, self.audio = llm, audio
        self.limits, self.chunking = limits, chunking
        self.clock = clock
        self.jobs: list[Job] = []
        self.counters = Counters()
        self._batch_seconds = 0.0
        """What a flow batch takes, smoothed."""
        self._speech_memory, self._sound_memory = MemoryPressure(), MemoryPressure()
        self.idle = False
        """Whether the last step did nothing: all that could run is put back for a moment."""
        self._held: dict[Sequence, list[Pcm]] = {}

    def add(self, job: Job) -> None:
        self.jobs.append(job)

    @property
    def working(self) -> bool:
        """Whether a step has anything to do: jobs whose text has yet to come have not."""
        return any(job.generating for job in self.jobs)

    def close(self, job: Job) -> list[Event]:
        """No more text follows: the job ends with the last of its sentences, which may be now."""
        job.open = False
        return list(self._advance(job))

    def end(self, job: Job) -> None:
        """Free all that the job holds; idempotent. For cancellation and after faults, between steps."""
        job.ended = True
        for sequence in job.sentences:
            self.llm.close(sequence)
            sequence.phase = Phase.DONE
            sequence.audio = None
            self._held.pop(sequence, None)
        if job in self.jobs:
            self.jobs.remove(job)

    def release(self) -> None:
        """Give the memory back that jobs and cache hold, so that another engine can be made. The last call."""
        for job in list(self.jobs):
            self.end(job)
        self.llm.cache.release()
        self.audio.release()

    def step(self) -> list[Event]:
        """Raises what the device raised when it is lost; then the engine is to be released."""
        now = self.clock()
        # A stream is served before it would run dry during the flow batch that serves it.
        urgent = min(max(self.limits.urgent_seconds, 2 * self._batch_seconds), LONGEST_URGENT_SECONDS)
        self._speech_memory.recover(now)
        self._sound_memory.recover(now)
        limits = replace(
            self.limits,
            max_running=self._speech_memory.of(self.limits.max_running),
            max_prefill_tokens=self._speech_memory.of(self.limits.max_prefill_tokens),
            max_batch_frames=self._sound_memory.of(self.limits.max_batch_frames),
            rider_frames=self._sound_memory.of(self.limits.rider_frames) if self.limits.rider_frames else 0,
            urgent_seconds=urgent,
        )
        step = plan(self.jobs, now, limits, self.chunking, self.llm.pool.free)
        self.counters.steps += 1
        self.idle = step.empty
        events: list[Event] = []
        for sequence in step.preempt:
            self._preempt(sequence)
        if step.prefill or step.decode:
            events += self._speak(step)
        if step.windows:
            events += self._sound([w for w in step.windows if not w.sequence.job.ended])
        return events

    def _preempt(self, sequence: Sequence) -> None:
        self.llm.close(sequence)
        sequence.phase = Phase.WAITING
        self.counters.preempted += 1

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _speak(self, step: Step) -> Iterator[Event]:
        began = self.clock()
        for sequence in step.prefill:
            self.llm.open(sequence)
            sequence.phase = Phase.DECODING
        rows = [*step.prefill, *step.decode]
        opening = set(step.prefill)

        def run(part: list[Sequence]) -> list[int]:
            return self.llm.step([s for s in part if s in opening], [s for s in part if s not in opening])

        half, wide = [s for s in rows if not s.wide_speech], [s for s in rows if s.wide_speech]
        pressure = self._speech_memory
        results = self._narrowed(half, run, pressure) + self._narrowed(wide, run, pressure)
        for sequence, token in results:
            if sequence.job.ended:  # by another of its sentences, in this very batch; its slot is given away
                continue
            if isinstance(token, Exception):
                if self._put_back(sequence, "speech", token):
                    self.llm.close(sequence)
                    sequence.phase = Phase.WAITING
                else:
                    yield self._fail(sequence.job, f"the language model failed: {token}")
            elif token == NOT_FINITE:
                self.counters.not_finite += 1
                self.llm.close(sequence, scrub=True)
                if self.llm.half and not sequence.wide_speech:
                    sequence.wide_speech, sequence.phase = True, Phase.WAITING
                else:
                    yield self._fail(sequence.job, "the language model's output was not finite")
            else:
                del sequence.put_back["speech"]
                self._take(sequence, token)
        self.counters.llm_batches += 1
        self.counters.llm_rows += len(rows)
        self.counters.llm_seconds += self.clock() - began

    def _take(self, sequence: Sequence, token: int) -> None:
        stop = token in self.llm.model.stop_ids
        if not stop:
            self.llm.accept(sequence, token)
            self.counters.speech_tokens += 1
        if stop or len(sequence.tokens) >= sequence.max_tokens:
            self.llm.close(sequence)
            sequence.phase = Phase.FINISHING
            sequence.complete_at = self.clock()

    # --- audio --------------------------------------------------------------------------------------------------------

    def _sound(self, windows: list[Window]) -> Iterator[Event]:
        began = self.clock()
        half, wide = [w for w in windows if not w.sequence.wide_sound], [w for w in windows if w.sequence.wide_sound]
        run = self._one_by_one if self.chunking.fixed else self.audio.run
        pressure = self._sound_memory
        results = self._narrowed(half, run, pressure) + self._narrowed(wide, run, pressure)
        for window, pcm in results:
            sequence = window.sequence
            if sequence.job.ended:
                continue
            if isinstance(pcm, Exception):
                if not self._put_back(sequence, "sound", pcm):
                    yield self._fail(sequence.job, f"the decoder failed: {pcm}")
            elif pcm is None:
                self.counters.not_finite += 1
                if self.audio.half and not sequence.wide_sound:
                    sequence.wide_sound = True
                else:
                    yield self._fail(sequence.job, "the decoder's output was not finite")
            else:
                del sequence.put_back["sound"]
                sequence.boundary = window.boundary
                sequence.hops += 1
                if window.final:
                    sequence.phase = Phase.DONE
                    sequence.audio = None
                yield from self._hand_out(sequence, pcm)
        self.counters.flow_rows += len(windows)
        self.counters.flow_batches += 1
        self.counters.flow_frames += sum(w.frames for w in windows)
        took = self.clock() - began
        self.counters.sound_seconds += took
        self._batch_seconds += BATCH_WEIGHT * (took - self._batch_seconds)

    def _one_by_one(self, windows: list[Window]) -> list[Pcm | None]:
        return [self.audio.run([window])[0] for window in windows]

    def _hand_out(self, sequence: Sequence, pcm: Pcm) -> Iterator[Event]:
        """Audio leaves in the order of the sentences; that of a later one is held until its turn."""
        if len(pcm):
            self._held.setdefault(sequence, []).append(pcm)
        yield from self._advance(sequence.job)

    def _advance(self, job: Job) -> Iterator[Event]:
        while job.delivered_sentences < len(job.sentences):
            current = job.sentences[job.delivered_sentences]
            for piece in self._held.pop(current, []):
                if job.first_audio is None:
                    job.first_audio = self.clock()
                seconds = len(piece) / self.audio.sample_rate
                job.delivered_seconds += seconds
                self.counters.audio_seconds += seconds
                yield Audio(job, piece)
            if current.phase is not Phase.DONE:
                return
            job.delivered_sentences += 1
        if not job.open:
            self.end(job)
            yield Finished(job)

    # --- faults -------------------------------------------------------------------------------------------------------

    def _fail(self, job: Job, reason: str) -> Failed:
        self.end(job)
        return Failed(job, reason)

    def _narrowed(
        self, rows: list[Row], run: Callable[[list[Row]], list[T]], pressure: MemoryPressure
    ) -> list[tuple[Row, T | Exception]]:
        memory = self.counters.faults.out_of_memory
        before = memory.total()
        results = narrowed(rows, run, self.counters.faults)
        if memory.total() > before:
            pressure.ran_out(self.clock())
        return results

    def _put_back(self, sequence: Sequence, stage: str, error: Exception) -> bool:
        """Whether a sentence that failed alone is tried again later, because all that it lacked is memory."""
        if not lacks_memory(error):
            return False
        if sequence.put_back[stage] >= PUT_BACK_AT_MOST:
            self.counters.faults.took(GIVE_UP, 1)
            return False
        self.counters.faults.took(PUT_BACK, 1)
        sequence.retry_at = self.clock() + PUT_BACK_SECONDS * 2 ** sequence.put_back[stage]
        sequence.put_back[stage] += 1
        return True
