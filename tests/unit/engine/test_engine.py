"""The engine on a real tiny model: what runs together gives what each gives alone, and faults stay where they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosyvoice_worker.engine.audio_runner import Made
from cosyvoice_worker.engine.decoding import NOT_FINITE
from cosyvoice_worker.engine.engine import Pcm
from cosyvoice_worker.engine.faults import device_lost
from cosyvoice_worker.engine.requests import Unspeakable, Voice
from cosyvoice_worker.engine.scheduler import Window
from cosyvoice_worker.engine.sequences import IN_FLIGHT_SENTENCES, Phase, Sequence
from tests.unit.engine.tiny import Bench, alone, model, request

TEXTS = ("Hi.", "Hi there you.", "One two three. Four five six.")
WAVE_TOLERANCE = 5e-3
"""Absolute, CPU float32: the pitch's rounding error gathers in the phase (tests/golden: v2 end to end 5e-3)."""


def same_audio(one: np.ndarray, other: np.ndarray) -> None:  # type: ignore[type-arg]
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, atol=WAVE_TOLERANCE)


requests = st.tuples(
    st.sampled_from(TEXTS),
    st.integers(0, 2),
    st.sampled_from([0, 30]),
    st.booleans(),
    st.integers(0, 60),
    st.none() | st.integers(1, 80),
)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(requests, min_size=2, max_size=5))
def test_whatever_arrives_and_leaves_when_each_request_gives_what_it_gives_alone(
    arrivals: list[tuple[str, int, int, bool, int, int | None]],
) -> None:
    bench = Bench(slots=3, blocks=24)
    told = {}
    for step in range(150):
        for index, (text, seed, prompt, streaming, at, leaves) in enumerate(arrivals):
            if at == step:
                told[index] = bench.add(request(text, seed=seed, prompt=prompt, streaming=streaming))
            if leaves is not None and at + leaves == step:
                bench.engine.end(told[index].job)
        bench.step()
    bench.finish()
    for index, (text, seed, prompt, streaming, _, leaves) in enumerate(arrivals):
        single = alone(text, seed, prompt, streaming)
        if told[index].done:
            assert told[index].tokens == single.tokens
            same_audio(told[index].pcm, single.pcm)
        else:
            assert leaves is not None
            heard = told[index].pcm
            same_audio(heard, single.pcm[: len(heard)])
    assert bench.engine.llm.pool.used == 0


def test_another_seed_is_another_reading_and_the_same_seed_the_same() -> None:
    first, again = alone("Hi there you.", 1, 0, True), Bench()
    told = again.add(request("Hi there you.", seed=1))
    again.finish()
    assert told.tokens == first.tokens
    np.testing.assert_array_equal(told.pcm, first.pcm)
    assert alone("Hi there you.", 2, 0, True).tokens != first.tokens


def test_a_batch_in_two_lanes_gives_each_request_its_own_audio() -> None:
    bench = Bench(lanes=2)
    told = [bench.add(request(text, seed=seed, streaming=False)) for seed, text in enumerate(TEXTS)]
    widest = 0
    run = bench.engine.audio.run

    def watched(windows: list[Window]) -> list[Pcm | None]:
        nonlocal widest
        widest = max(widest, len(windows))
        return run(windows)

    bench.engine.audio.run = watched  # type: ignore[method-assign,assignment]
    bench.finish()
    assert widest > 1, "nothing was split"
    for seed, (text, one) in enumerate(zip(TEXTS, told, strict=True)):
        assert one.done
        same_audio(one.pcm, alone(text, seed, 0, False).pcm)


def test_a_lane_that_fails_fails_the_batch_and_leaves_what_the_others_carry_as_it_was() -> None:
    bench = Bench(lanes=2)
    told = [bench.add(request(text, seed=seed)) for seed, text in enumerate(TEXTS)]
    compute = bench.engine.audio._compute
    bad = told[0].job.sentences[0]

    def failing(windows: list[Window]) -> list[Made]:
        if any(w.sequence is bad for w in windows):
            raise RuntimeError("no such sound")
        return compute(windows)

    bench.engine.audio._compute = failing  # type: ignore[method-assign,assignment]
    bench.finish()
    assert "no such sound" in told[0].error
    for seed in (1, 2):
        assert told[seed].done
        same_audio(told[seed].pcm, alone(TEXTS[seed], seed, 0, True).pcm)


def test_streaming_gives_audio_before_the_sentence_is_spoken_to_its_end() -> None:
    bench = Bench()
    told = bench.add(request("One two three four five six seven eight nine."))
    while not told.pieces:
        bench.step()
    assert told.job.sentences[0].phase is Phase.DECODING
    assert len(told.job.sentences[0].tokens) <= 28 + 1
    bench.finish()
    assert len(told.pieces) > 1
    assert len(told.pcm) == len(told.job.sentences[0].tokens) * 960


def test_sentences_come_out_in_order_with_two_in_flight() -> None:
    bench = Bench()
    told = bench.add_sentences(["Hi there.", "You.", "One two three.", "Hi.", "Four."])
    sentences = told.job.sentences
    most = 0
    while not told.done:
        bench.step()
        most = max(most, sum(s.phase in (Phase.DECODING, Phase.FINISHING) for s in sentences))
    assert most == IN_FLIGHT_SENTENCES
    samples = [960 * len(s.tokens) for s in sentences]
    assert len(told.pcm) == sum(samples)
    same_audio(told.pcm[: samples[0]], alone("Hi there.", 0, 0, True).pcm)
    assert told.tokens[3] != told.tokens[0], "each sentence has draws of its own"


def test_sentences_that_come_later_are_spoken_as_if_they_had_been_there() -> None:
    texts = ["Hi there.", "One two three.", "You."]
    whole = Bench()
    at_once = whole.add_sentences(texts)
    whole.finish()
    bench = Bench()
    told = bench.dictate()
    assert not bench.engine.working
    for text in texts:
        bench.extend(told, text)
        while bench.engine.working:
            bench.step()
        assert not told.done, "more may come"
        bench.now += 5.0
    bench.close(told)
    assert told.done
    assert told.tokens == at_once.tokens
    same_audio(told.pcm, at_once.pcm)
    assert bench.engine.jobs == []


def test_who_waited_for_text_is_not_hungrier_than_who_waits_for_audio() -> None:
    bench = Bench()
    told = bench.dictate()
    bench.extend(told, "Hi there.")
    while bench.engine.working:
        bench.step()
    bench.now += 100.0
    bench.extend(told, "You.")
    assert told.job.in_hand(bench.now) == 0.0
    bench.now += 2.0
    assert told.job.in_hand(bench.now) == -2.0


def test_cancelling_frees_slot_and_blocks_at_once() -> None:
    bench = Bench()
    told = bench.add(request("One two three four five six seven eight nine."))
    other = bench.add(request("Hi there you.", seed=1))
    for _ in range(10):
        bench.step()
    before = bench.engine.llm.pool.used
    bench.engine.end(told.job)
    assert bench.engine.llm.pool.used < before
    bench.finish()
    assert not told.done
    assert other.tokens == alone("Hi there you.", 1, 0, True).tokens
    assert bench.engine.llm.pool.used == 0


def test_a_sentence_put_back_for_lack_of_blocks_is_the_same_in_the_end() -> None:
    bench = Bench(slots=4, blocks=5)
    told = [bench.add(request("Hi there you.", seed=seed, prompt=30)) for seed in range(3)]
    bench.finish()
    assert bench.engine.counters.preempted > 0
    for seed, one in enumerate(told):
        assert one.tokens == alone("Hi there you.", seed, 30, True).tokens


def test_a_sentence_whose_values_are_not_finite_fails_alone() -> None:
    bench = Bench()
    bad = bench.add(request("Hi there you.", seed=5, prompt=30))
    good = [bench.add(request("Hi there you.", seed=seed)) for seed in range(2)]
    for _ in range(5):
        bench.step()
    # What a faulty kernel or an overflow in half precision leaves behind.
    for block in bad.job.sentences[0].blocks:
        bench.engine.llm.cache.data[:, block * 32 : (block + 1) * 32] = torch.nan
    bench.finish()
    assert "not finite" in bad.error
    assert bench.engine.counters.not_finite == 1
    for seed, one in enumerate(good):
        assert one.tokens == alone("Hi there you.", seed, 0, True).tokens
    again = bench.add(request("Hi there you.", seed=1, prompt=30))
    bench.finish()
    assert again.tokens == alone("Hi there you.", 1, 30, True).tokens, "its blocks are clean when they are used again"


def test_a_request_that_a_stage_cannot_take_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bad = bench.add(request("Hi there you.", seed=5))
    good = bench.add(request("Hi there you.", seed=1))
    bad.job.request = replace(bad.job.request, voice=Voice("broken", torch.zeros(7)))
    bench.finish()
    assert bad.error.startswith("the decoder failed")
    assert good.tokens == alone("Hi there you.", 1, 0, True).tokens
    same_audio(good.pcm, alone("Hi there you.", 1, 0, True).pcm)
    assert "a batch of 2 failed" in caplog.text


def test_a_sentence_whose_sibling_fails_in_the_same_step_writes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(slots=3)
    bad = bench.add_sentences(["Hi there.", "You."])
    good = bench.add(request("Hi there you.", seed=1))
    llm = bench.engine.llm
    while not all(s.phase is Phase.DECODING for s in (*bad.job.sentences, *good.job.sentences)):
        bench.step()
    step, window = llm.step, llm.sampling.window

    def not_finite(prefill: list[Sequence], decode: list[Sequence]) -> list[int]:
        tokens = step(prefill, decode)
        return [
            NOT_FINITE if s is bad.job.sentences[0] else t for s, t in zip([*prefill, *decode], tokens, strict=True)
        ]

    monkeypatch.setattr(llm, "step", not_finite)
    bench.step()
    monkeypatch.undo()
    assert "not finite" in bad.error
    (other,) = good.job.sentences
    assert other.slot == 2, "the last one, which a closed sentence's slot -1 would mean"
    assert llm._recent[other.slot].tolist() == ([-1] * window + other.tokens)[-window:]
    bench.finish()
    assert good.tokens == alone("Hi there you.", 1, 0, True).tokens


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False),
        (RuntimeError("CUDA error: out of memory"), False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
    ],
)
def test_what_stands_for_a_lost_device(error: Exception, lost: bool) -> None:
    assert device_lost(error) is lost


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="torch < 2.8")
def test_a_lost_device_is_raised_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def lost(windows: list[Window]) -> list[Pcm]:
        raise torch.AcceleratorError("device-side assert triggered")

    monkeypatch.setattr(bench.engine.audio, "run", lost)
    for seed in range(2):
        bench.add(request("Hi there you.", seed=seed))
    with pytest.raises(torch.AcceleratorError):
        bench.finish()
    bench.engine.release()
    assert bench.engine.jobs == []
    assert bench.engine.llm.cache.data.numel() == 0


def test_speed_changes_the_length() -> None:
    bench = Bench()
    fast = bench.add(request("Hi there you.", seed=1, speed=2.0, streaming=False))
    bench.finish()
    assert len(fast.pcm) == pytest.approx(len(alone("Hi there you.", 1, 0, False).pcm) / 2, abs=480)


@pytest.mark.parametrize("text", ["", "...", "\n", "😀"])
def test_nothing_to_say_is_told_at_once(text: str) -> None:
    with pytest.raises(Unspeakable, match="nothing in this text"):
        Bench().add(request(text))


def test_a_voice_that_leaves_no_room_is_told_at_once() -> None:
    with pytest.raises(Unspeakable, match="shorten the sentence or the voice's recording"):
        Bench(blocks=2).add(request("Hi there you.", prompt=60))


def test_lengths_keep_to_the_official_bounds() -> None:
    told = alone("Hi there you.", 1, 0, True)
    text_tokens = len(told.job.sentences[0].text_ids)
    assert 2 * text_tokens <= len(told.tokens[0]) <= 20 * text_tokens
    assert not set(told.tokens[0]) & set(model().lm.stop_ids)
