"""What runs in the next step: pure decisions from (jobs, clock, limits). The runner carries them out.

A step is one pass of the LLM over a mixed batch (new sentences prefill, running ones decode one token each) and, when
it is worth it, one batch of flow windows, each of which becomes mel and at once audio. Who has least audio in hand goes
first; who has plenty yields.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listing
from dataclasses import dataclass

from cosyvoice_worker.engine.blocks import BLOCK_SIZE, blocks_for
from cosyvoice_worker.engine.sequences import TOKENS_PER_SECOND, Job, Phase, Sequence

PLENTY_SECONDS = 10.0
"""A stream with so much audio in hand stands back while another is hungry."""
HUNGRY_SECONDS = 1.0
"""A stream with less than that in hand is hungry; one that waits for its first audio always is."""
GATHER_SECONDS = 0.25
"""A whole-sentence decode waits at most that long for company: nobody listens to it yet, and a batch is cheaper."""
FIRST_PATIENCE, PATIENCE = 4, 12
"""Steps of the LLM by which an urgent flow batch is put off for one who is about to join; the first where somebody
waits for a first audio."""
FRAMES_PER_TOKEN = 2
LONG_FRAMES = 2_000
"""A batch's attention scores grow with the square of its windows. From that length on a window counts accordingly: at
16,000 frames a batch the scores of eight heads, by distance and by position, take some 2 GB in float16."""

Need = Callable[[Sequence], float]
"""Seconds in hand when that sentence comes to be played; the least is the most needed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one step."""

    max_running: int
    """Rows of the LLM batch = sentences that hold a slot."""
    max_prefill_tokens: int
    """Prompt positions in one LLM pass, so that running streams are not held up; one prompt may exceed it alone."""
    max_batch_frames: int
    """Mel frames in one flow batch, prompts and padding included; one window may exceed it alone."""
    rider_frames: int
    """Frames up to which an urgent flow batch is filled with windows that could wait: what costs the device no time."""
    urgent_seconds: float
    """A window is urgent when its stream has less than that in hand: about what a flow batch takes."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a streamed sentence may be cut for the flow: the model's own figures."""

    chunk: int
    """Tokens per chunk of the flow's mask; cuts stand at multiples of it, counted from the start of the prompt, because
    only there does a window give what the whole would give (research note A5)."""
    lookahead: int
    """Tokens past a cut that the flow must see."""
    first: int
    """Tokens at least in the first window: fewer would be swallowed by the vocoder's own look-ahead."""
    growth: tuple[int, ...] = (1, 2, 4)
    """Size of the first, second, ... window in chunks, per sentence; the last figure holds for all that follow."""
    fixed: bool = False
    """Where a sentence is cut follows from its tokens alone, not from how many of them are there when it is looked at;
    and each window is computed alone. So its audio does not depend on who else runs, not even by rounding."""

    def hop(self, done: int) -> int:
        return self.chunk * self.growth[min(done, len(self.growth) - 1)]

    @property
    def longest(self) -> int:
        return self.chunk * self.growth[-1]


@dataclass(frozen=True, slots=True)
class Window:
    """One flow call's row: heard tokens `0..stop` of the sequence are shown, mel up to token `boundary` is wanted."""

    sequence: Sequence
    stop: int
    boundary: int
    final: bool

    @property
    def frames(self) -> int:
        """What it costs: mel frames with the prompt's."""
        return FRAMES_PER_TOKEN * (self.sequence.job.voice_tokens + self.boundary)


@dataclass(frozen=True, slots=True)
class Step:
    preempt: tuple[Sequence, ...] = ()
    """Lose their slot and blocks now, and are computed again later."""
    prefill: tuple[Sequence, ...] = ()
    decode: tuple[Sequence, ...] = ()
    windows: tuple[Window, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.preempt or self.prefill or self.decode or self.windows)


def plan(jobs: Listing[Job], now: float, limits: Limits, chunking: Chunking, free_blocks: int) -> Step:
    """The next step. Empty only when there is nothing to do for any job, or all that could run is put back."""
    sequences = [
        s for job in jobs if job.generating for s in job.sentences if s.phase is not Phase.DONE and s.retry_at <= now
    ]
    in_hand = {id(s): s.job.in_hand_at(s, now) for s in sequences}

    def need(sequence: Sequence) -> float:
        return in_hand[id(sequence)]

    preempt, decode, free_blocks = _decode(sequences, need, limits, free_blocks)
    prefill = () if preempt else _prefill(sequences, need, limits, free_blocks)
    windows = _windows(sequences, need, now, limits, chunking, llm_works=bool(prefill or decode))
    return Step(preempt, prefill, decode, windows)


def _decode(
    sequences: list[Sequence], need: Need, limits: Limits, free_blocks: int
) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...], int]:
    """(preempted, decoding, blocks left): all running sentences advance, except the rich while someone is hungry.

    There are more of them than may run only where memory ran out meanwhile; then the richest wait.

    Where the cache has no block for a row that needs a new one, the richest sentence gives up all of its own.
    """
    running = sorted((s for s in sequences if s.phase is Phase.DECODING), key=need)
    if any(need(s) < HUNGRY_SECONDS for s in sequences):
        rows = [s for s in running if need(s) < PLENTY_SECONDS]
    else:
        rows = list(running)
    rows = rows[: limits.max_running]
    preempted: list[Sequence] = []
    while (wanted := sum(s.cached % BLOCK_SIZE == 0 for s in rows)) > free_blocks:
        victim = running.pop()
        preempted.append(victim)
        free_blocks += len(victim.blocks)
        if victim in rows:
            rows.remove(victim)
    return tuple(preempted), tuple(rows), free_blocks - wanted


def _prefill(sequences: list[Sequence], need: Need, limits: Limits, free_blocks: int) -> tuple[Sequence, ...]:
    """Waiting sentences that get a slot now, the most needed first. None overtakes one that lacks only blocks."""
    running = sum(s.phase is Phase.DECODING for s in sequences)
    waiting = sorted((s for s in sequences if s.phase is Phase.WAITING and s.job.may_start(s)), key=need)
    chosen: list[Sequence] = []
    tokens = 0
    for sequence in waiting[: max(0, limits.max_running - running)]:
        length = sequence.prompt_length + len(sequence.tokens)
        blocks = blocks_for(length + 1)
        # A block in reserve for each row that runs: else the next one to grow would preempt what has just begun.
        reserve = running + len(chosen)
        if blocks + reserve > free_blocks or (chosen and tokens + length > limits.max_prefill_tokens):
            break
        chosen.append(sequence)
        tokens += length
        free_blocks -= blocks
    return tuple(chosen)


def _windows(
    sequences: list[Sequence], need: Need, now: float, limits: Limits, chunking: Chunking, *, llm_works: bool
) -> tuple[Window, ...]:
    """The flow batch. Urgent windows go at once; others when they fill a batch or the LLM has nothing to do."""
    urgent: list[Window] = []
    patient: list[Window] = []
    for sequence in sorted(sequences, key=need):
        pressing = need(sequence) < limits.urgent_seconds
        window = next_window(sequence, chunking)
        if window is None:
            continue
        if not sequence.job.request.streaming:
            pressing = now - sequence.complete_at >= GATHER_SECONDS
        (urgent if pressing else patient).append(window)
    if urgent and not (llm_works and _company_comes(urgent, sequences, need, now, limits, chunking=chunking)):
        return _fill(_fill((), urgent, limits.max_batch_frames), patient, limits.rider_frames)
    if not urgent and (
        not llm_works or _cost(len(patient), max((w.frames for w in patient), default=0)) >= limits.max_batch_frames
    ):
        return _fill((), patient, limits.max_batch_frames)
    return ()


def _company_comes(
    urgent: list[Window], sequences: list[Sequence], need: Need, now: float, limits: Limits, *, chunking: Chunking
) -> bool:
    """Whether an urgent batch is put off for a few steps of the LLM, because another hungry stream is about to join.

    A flow batch takes as long as several such steps, so who just missed it would wait longer than who waits for it.
    """
    patience = FIRST_PATIENCE if any(w.sequence.boundary == 0 for w in urgent) else PATIENCE
    for window in urgent:
        sequence = window.sequence
        if sequence.phase is Phase.FINISHING:
            waited = (now - sequence.complete_at) * TOKENS_PER_SECOND
        else:
            waited = -_missing(sequence, chunking)
        if waited >= patience:
            return False
    return any(
        s.phase is Phase.DECODING
        and s.job.request.streaming
        and need(s) < limits.urgent_seconds
        and 0 < _missing(s, chunking) <= patience
        for s in sequences
    )


def _fill(batch: tuple[Window, ...], candidates: list[Window], frames: int) -> tuple[Window, ...]:
    """`batch` and those candidates, in order, with which its cost stays within `frames`; at least one."""
    rows, longest = list(batch), max((w.frames for w in batch), default=0)
    for window in candidates:
        if not rows or _cost(len(rows) + 1, max(longest, window.frames)) <= frames:
            rows.append(window)
            longest = max(longest, window.frames)
    return tuple(rows)


def _cost(rows: int, longest: int) -> float:
    """Frames after padding; of long windows, by the memory that they take."""
    return rows * longest * max(1.0, longest / LONG_FRAMES)


def next_window(sequence: Sequence, chunking: Chunking) -> Window | None:
    """The next stretch of tokens that can become audio, or None while more tokens are needed.

    Hops grow even for a stream that runs dry: a window computes all before it again, so that small hops under load
    would make more work of the same audio (measured: four times, at 16 streams).
    """
    have, done = len(sequence.heard), sequence.boundary
    complete = sequence.phase is Phase.FINISHING
    streaming, due = sequence.job.request.streaming, _missing(sequence, chunking) <= 0
    if complete and not (streaming and (due if chunking.fixed else have - done > chunking.longest)):
        return Window(sequence, have, have, final=True)
    if not streaming or not due:
        return None
    if chunking.fixed:
        cut = _next_cut(sequence, chunking)
        return Window(sequence, cut + chunking.lookahead, cut, final=False)
    prompt = sequence.job.voice_tokens
    latest = min(have - chunking.lookahead, max(done + chunking.longest, _next_cut(sequence, chunking)))
    boundary = (prompt + latest) // chunking.chunk * chunking.chunk - prompt
    return Window(sequence, boundary + chunking.lookahead, boundary, final=False)


def _next_cut(sequence: Sequence, chunking: Chunking) -> int:
    """Tokens at the end of the next window at the earliest: its hop, and on to a multiple of the chunk."""
    prompt = sequence.job.voice_tokens
    wanted = chunking.first if sequence.boundary == 0 else chunking.hop(sequence.hops)
    return -(-(prompt + sequence.boundary + wanted) // chunking.chunk) * chunking.chunk - prompt


def _missing(sequence: Sequence, chunking: Chunking) -> int:
    """Tokens that a streamed sentence lacks for its next window; negative: so many more than it needs."""
    return _next_cut(sequence, chunking) + chunking.lookahead - len(sequence.heard)
