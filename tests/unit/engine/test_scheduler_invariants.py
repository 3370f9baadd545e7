"""What holds for every step, whatever the state: a random walk through states that only the plan itself drives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_worker.engine.blocks import BLOCK_SIZE, blocks_for
from cosyvoice_worker.engine.scheduler import Limits, Step, plan
from cosyvoice_worker.engine.sequences import IN_FLIGHT_SENTENCES, Job, Phase, Sequence
from tests.unit.engine.test_scheduler import CHUNKING, LIMITS, job

BLOCKS = 16
jobs = st.builds(
    job,
    sentences=st.integers(1, 4),
    arrived=st.floats(0, 5),
    prompt=st.integers(0, 60),
    streaming=st.booleans(),
    length=st.integers(3, 150),
)


class Pretended:
    """Carries a plan out on the state alone: every row gets a token, every window its audio."""

    def __init__(self, todo: list[Job], limits: Limits) -> None:
        self.todo, self.limits = todo, limits
        self.now = 5.0
        self.free = BLOCKS
        for one in todo:
            for sentence in one.sentences:
                sentence.max_tokens = min(120, BLOCKS * BLOCK_SIZE - sentence.prompt_length)

    def steps(self) -> Iterator[Step]:
        while any(one.generating for one in self.todo):
            step = plan(self.todo, self.now, self.limits, CHUNKING, self.free)
            yield step
            for sequence in step.preempt:
                self._release(sequence)
                sequence.phase = Phase.WAITING
            for sequence in step.prefill:
                self._take(sequence, blocks_for(sequence.prompt_length + len(sequence.tokens)))
                sequence.phase = Phase.DECODING
            for sequence in step.decode:
                if sequence.cached == len(sequence.blocks) * BLOCK_SIZE:
                    self._take(sequence, 1)
            for sequence in (*step.prefill, *step.decode):
                sequence.cached = sequence.prompt_length + len(sequence.tokens)
                sequence.take(5, frozenset())
                if len(sequence.tokens) == sequence.max_tokens:
                    self._release(sequence)
                    sequence.phase, sequence.complete_at = Phase.FINISHING, self.now
            for window in step.windows:
                self._play(window.sequence, window.boundary, window.final)
            self.now += 0.02

    def _take(self, sequence: Sequence, count: int) -> None:
        self.free -= count
        assert self.free >= 0, "blocks that are not there"
        sequence.blocks += [0] * count

    def _release(self, sequence: Sequence) -> None:
        self.free += len(sequence.blocks)
        sequence.blocks.clear()
        sequence.cached = 0

    def _play(self, sequence: Sequence, boundary: int, final: bool) -> None:
        sequence.boundary, sequence.hops = boundary, sequence.hops + 1
        if final:
            sequence.phase = Phase.DONE
        one = sequence.job
        one.first_audio = self.now if one.first_audio is None else one.first_audio
        one.delivered_seconds += 1.0
        while one.delivered_sentences < len(one.sentences):
            if one.sentences[one.delivered_sentences].phase is not Phase.DONE:
                break
            one.delivered_sentences += 1


@settings(max_examples=40, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=6), st.integers(1, 4))
def test_every_plan_can_be_carried_out_and_all_work_ends(todo: list[Job], slots: int) -> None:
    limits = replace(LIMITS, max_running=slots)
    for count, step in enumerate(Pretended(todo, limits).steps()):
        assert not step.empty, "there is work, so something runs"
        assert count < 20_000, "the work does not end"
        rows = [*step.prefill, *step.decode]
        assert len(set(map(id, rows))) == len(rows)
        assert not set(map(id, rows)) & set(map(id, step.preempt))
        holders = [s for one in todo for s in one.sentences if s.phase is Phase.DECODING]
        assert len(holders) + len(step.prefill) <= slots
        assert len(step.prefill) <= 1 or sum(s.prompt_length + len(s.tokens) for s in step.prefill) <= 100
        frames = [w.frames for w in step.windows]
        assert len(frames) <= 1 or len(frames) * max(frames) <= limits.max_batch_frames
        for window in step.windows:
            assert window.sequence.boundary < window.boundary <= window.stop <= len(window.sequence.heard)
            if not window.final:
                prompt = window.sequence.job.voice_tokens
                assert (prompt + window.boundary) % CHUNKING.chunk == 0, "cuts stand on the mask's chunks"
        for one in todo:
            started = [s for s in one.sentences if s.phase in (Phase.DECODING, Phase.FINISHING)]
            assert len(started) + sum(s.job is one for s in step.prefill) <= IN_FLIGHT_SENTENCES
