"""What runs next, decided from state and clock alone."""

from dataclasses import replace

import torch

from cosyvoice_worker.engine.blocks import BLOCK_SIZE
from cosyvoice_worker.engine.frontend.prompt import Prompt
from cosyvoice_worker.engine.requests import SynthesisRequest, Voice
from cosyvoice_worker.engine.scheduler import LONG_FRAMES, PLENTY_SECONDS, Chunking, Limits, next_window, plan
from cosyvoice_worker.engine.sequences import Job, Phase, Sequence

LIMITS = Limits(max_running=4, max_prefill_tokens=100, max_batch_frames=400, rider_frames=0, urgent_seconds=0.3)
CHUNKING = Chunking(chunk=25, lookahead=3, first=10)
PLENTY_OF_BLOCKS = 100


def job(*, sentences: int = 1, arrived: float = 0.0, prompt: int = 0, streaming: bool = True, length: int = 20) -> Job:
    voice = Voice("v", torch.zeros(192), prompt_tokens=torch.zeros(prompt, dtype=torch.int64))
    request = SynthesisRequest("r", "text", voice, streaming=streaming)
    made = Job(request=request, seed=0, arrived=arrived, prompt=Prompt())
    for index in range(sentences):
        made.sentences.append(Sequence(made, index, [1] * 10, length, min_tokens=20, max_tokens=200))
    return made


def running(tokens: int = 0, *, in_hand: float | None = None, blocks: int = 1, **kwargs: object) -> Job:
    """A job whose first sentence decodes, with so many seconds in hand at time 0 (None: nothing delivered yet)."""
    made = job(**kwargs)  # type: ignore[arg-type]
    first = made.sentences[0]
    first.phase, first.tokens, first.heard = Phase.DECODING, [5] * tokens, [5] * tokens
    first.blocks, first.cached = list(range(blocks)), 1
    if in_hand is not None:
        made.first_audio, made.delivered_seconds = 0.0, in_hand
    return made


def finished(tokens: int, **kwargs: object) -> Job:
    made = running(tokens, **kwargs)  # type: ignore[arg-type]
    made.sentences[0].phase = Phase.FINISHING
    return made


def test_nothing_to_do_is_an_empty_step() -> None:
    assert plan([], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).empty


def test_new_sentences_join_while_others_decode() -> None:
    old, new = running(5), job()
    step = plan([old, new], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS)
    assert step.prefill == (new.sentences[0],)
    assert step.decode == (old.sentences[0],)


def test_prefill_keeps_within_slots_and_tokens_and_takes_who_waits_longest_first() -> None:
    jobs = [job(arrived=-float(i), length=40) for i in range(6)]
    step = plan(jobs, 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS)
    assert step.prefill == (jobs[5].sentences[0], jobs[4].sentences[0]), "a third would exceed 100 tokens"
    short = [job(arrived=-float(i), length=5) for i in range(6)]
    assert len(plan(short, 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).prefill) == LIMITS.max_running
    assert len(plan([job(length=500)], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).prefill) == 1


def test_two_sentences_of_a_job_at_most_are_in_flight_and_the_first_goes_first() -> None:
    long = job(sentences=5, length=5)
    other = job(arrived=1.0, length=5)
    step = plan([long, other], 2.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS)
    assert step.prefill == (long.sentences[0], long.sentences[1], other.sentences[0])
    long.delivered_sentences = 1
    long.sentences[0].phase = Phase.DONE
    assert plan([long], 2.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).prefill == tuple(long.sentences[1:3])


def test_a_stream_with_plenty_in_hand_yields_while_another_is_hungry() -> None:
    rich, poor = running(5, in_hand=PLENTY_SECONDS), running(5, in_hand=0.5)
    assert plan([rich, poor], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).decode == (poor.sentences[0],)
    content = running(5, in_hand=5.0)
    step = plan([rich, content], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS)
    assert step.decode == (content.sentences[0], rich.sentences[0])


def test_without_a_free_block_the_richest_gives_up_its_own() -> None:
    full = {"blocks": 1, "in_hand": 1.0}
    poor, rich = running(5, **full), running(5, blocks=3, in_hand=8.0)  # type: ignore[arg-type]
    poor.sentences[0].cached = BLOCK_SIZE
    step = plan([rich, poor], 0.0, LIMITS, CHUNKING, free_blocks=0)
    assert step.preempt == (rich.sentences[0],)
    assert step.decode == (poor.sentences[0],)
    assert not step.prefill, "what was just put back does not come in at once"


def test_a_waiting_sentence_needs_its_blocks_and_one_in_reserve_for_each_that_runs() -> None:
    old, new = running(5), job(length=2 * BLOCK_SIZE)
    assert not plan([old, new], 0.0, LIMITS, CHUNKING, free_blocks=3).prefill
    assert plan([old, new], 0.0, LIMITS, CHUNKING, free_blocks=4).prefill == (new.sentences[0],)


def test_the_first_window_is_as_early_as_lookahead_and_chunks_allow() -> None:
    fresh = running(27).sentences[0]
    assert next_window(fresh, CHUNKING) is None
    fresh.heard.append(5)
    window = next_window(fresh, CHUNKING)
    assert window is not None
    assert (window.stop, window.boundary, window.final) == (28, 25, False)

    # With a prompt of 42 tokens the cut stands at 50 = 8 tokens: too few to give sound, so the next one is taken.
    prompted = running(36, prompt=42).sentences[0]
    window = next_window(prompted, CHUNKING)
    assert window is not None
    assert window.boundary == 33
    # With one of 40 it stands at 10 tokens, which is enough.
    window = next_window(running(13, prompt=40).sentences[0], CHUNKING)
    assert window is not None
    assert window.boundary == 10


def test_hops_grow_per_sentence() -> None:
    sequence = running(77).sentences[0]
    sequence.boundary, sequence.hops = 25, 1
    assert next_window(sequence, CHUNKING) is None, "the second hop is 50 tokens"
    sequence.heard.append(5)
    window = next_window(sequence, CHUNKING)
    assert window is not None
    assert window.boundary == 75
    sequence.heard = [5] * 300
    sequence.boundary, sequence.hops = 75, 2
    window = next_window(sequence, CHUNKING)
    assert window is not None
    assert window.boundary == 175, "no window is longer than the longest hop"


def test_the_last_window_takes_what_is_left_and_is_final() -> None:
    sequence = finished(60).sentences[0]
    sequence.boundary = 25
    window = next_window(sequence, CHUNKING)
    assert window is not None
    assert (window.stop, window.boundary, window.final) == (60, 60, True)


def test_a_whole_sentence_is_decoded_in_one_window_once_complete() -> None:
    assert next_window(running(150, streaming=False).sentences[0], CHUNKING) is None
    window = next_window(finished(150, streaming=False).sentences[0], CHUNKING)
    assert window is not None
    assert (window.stop, window.final) == (150, True)


def test_urgent_windows_go_first_and_alone_where_company_costs_time() -> None:
    starving, content = running(28, in_hand=0.1), running(150, in_hand=5.0)
    step = plan([content, starving], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS)
    assert [w.sequence for w in step.windows] == [starving.sentences[0]]
    free_ride = replace(LIMITS, rider_frames=10_000)
    step = plan([content, starving], 0.0, free_ride, CHUNKING, PLENTY_OF_BLOCKS)
    assert [w.sequence for w in step.windows] == [starving.sentences[0], content.sentences[0]]


def test_an_urgent_batch_waits_a_few_tokens_for_another_that_is_about_to_join() -> None:
    ready, coming, far = running(28), running(25), running(5)
    assert not plan([ready, coming, far], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).windows
    assert len(plan([ready, far], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).windows) == 1
    long_ready = running(28 + 4)
    assert len(plan([long_ready, coming], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).windows) == 1


def test_windows_that_can_wait_do_until_they_fill_a_batch_or_the_llm_rests() -> None:
    content = running(150, in_hand=5.0)
    assert not plan([content], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).windows
    many = [running(150, in_hand=5.0) for _ in range(3)]
    assert plan(many, 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).windows
    resting = finished(60, in_hand=5.0)
    assert len(plan([resting], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).windows) == 1


def test_a_flow_batch_keeps_within_its_frames_after_padding() -> None:
    jobs = [running(28, in_hand=0.01 * i) for i in range(20)]
    windows = plan(jobs, 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).windows
    assert [w.sequence.job for w in windows] == jobs[:8], "8 x 50 frames fit 400"
    assert len(plan([finished(100, prompt=200)], 0.0, LIMITS, CHUNKING, PLENTY_OF_BLOCKS).windows) == 1


def test_long_windows_count_by_the_square_of_their_length() -> None:
    limits = replace(LIMITS, max_batch_frames=16_000)

    def together(tokens: int) -> int:
        jobs = [finished(tokens, streaming=False) for _ in range(8)]
        return len(plan(jobs, 10.0, limits, CHUNKING, PLENTY_OF_BLOCKS).windows)

    assert together(LONG_FRAMES // 2) == 8, "2,000 frames each"
    assert together(LONG_FRAMES) == 2, "4,000 frames each: half as many as fit by their frames"
    assert together(7000) == 1
