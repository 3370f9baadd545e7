"""The vocoder in batches and in pieces: the same wave as alone and at once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import pytest
import torch
from torch import Tensor

from cosyvoice_worker.engine.modules.vocoder import Chunk, Noise, Vocoder
from tests.unit.engine.tiny import model

JOINED = 1e-4
"""A joined stream against one decode, CPU float32; the wave's standard deviation is 0.07 (v2) and 0.03 (v3).

Measured 5e-5 at most. v2 holds back 14 frames, which is what samples depend on given the source; the source in turn
depends on pitch up to six frames further on, but at that distance its weight is below this bound."""


@pytest.fixture(params=[2, 3])
def vocoder(request: pytest.FixtureRequest) -> Vocoder:
    return model(request.param).vocoder


def mel(frames: int, seed: int = 0) -> Tensor:
    return torch.randn(80, frames, generator=torch.Generator().manual_seed(seed)) * 2


def noise(seed: int = 0, samples: int = 240_000) -> Noise:
    table = torch.randn(samples, 9, generator=torch.Generator().manual_seed(seed))
    return lambda first, count: table[first : first + count]


def stream(vocoder: Vocoder, whole: Tensor, cuts: Sequence[int], noises: Noise) -> list[Tensor]:
    state, pieces, at = vocoder.begin(noises), [], 0
    for count in cuts:
        pieces += vocoder.advance([Chunk(state, whole[:, at : at + count], final=False)])
        at += count
    return pieces + vocoder.advance([Chunk(state, whole[:, at:], final=True)])


@torch.inference_mode()
@pytest.mark.parametrize("cuts", [(50, 50, 60), (1, 2, 3, 100), (159,), (60, 0, 60, 40), ()])
def test_a_stream_joined_equals_one_decode(vocoder: Vocoder, cuts: tuple[int, ...]) -> None:
    whole = mel(160)
    once = vocoder([whole], [noise()])[0]
    joined = torch.cat(stream(vocoder, whole, cuts, noise()))
    assert joined.shape == once.shape == (160 * 480,)
    assert float((joined - once).abs().max()) < JOINED


@torch.inference_mode()
def test_a_stream_holds_back_no_more_than_it_must(vocoder: Vocoder) -> None:
    first, *_, last = stream(vocoder, mel(120), (50, 50), noise())
    assert len(first) == (50 - vocoder.right) * 480
    assert len(last) == (20 + vocoder.right) * 480


@torch.inference_mode()
def test_rows_of_unequal_length_come_out_as_if_alone(vocoder: Vocoder) -> None:
    mels = [mel(frames, seed=frames) for frames in (1, 30, 47, 60)]
    noises = [noise(seed) for seed in range(4)]
    for together, one, drawn in zip(vocoder(mels, noises), mels, noises, strict=True):
        alone = vocoder([one], [drawn])[0]
        assert together.shape == alone.shape
        assert float((together - alone).abs().max()) < 2e-5


@torch.inference_mode()
def test_streams_at_different_places_share_a_batch(vocoder: Vocoder) -> None:
    wholes, noises = [mel(130, seed) for seed in range(3)], [noise(seed) for seed in range(3)]
    states = [vocoder.begin(drawn) for drawn in noises]
    heard: list[list[Tensor]] = [[], [], []]
    plan = [((0, 0, 60), (1, 0, 40)), ((0, 60, 110), (1, 40, 41), (2, 0, 130)), ((0, 110, 130), (1, 41, 130))]
    for step in plan:
        chunks = [Chunk(states[row], wholes[row][:, start:stop], stop == 130) for row, start, stop in step]
        for (row, _, _), piece in zip(step, vocoder.advance(chunks), strict=True):
            heard[row].append(piece)
    for row in range(3):
        once = vocoder([wholes[row]], [noises[row]])[0]
        assert float((torch.cat(heard[row]) - once).abs().max()) < JOINED


@torch.inference_mode()
def test_a_shallow_copy_of_the_state_is_a_way_back(vocoder: Vocoder) -> None:
    whole, state = mel(100), vocoder.begin(noise())
    vocoder.advance([Chunk(state, whole[:, :60], final=False)])
    kept = copy(state)
    first = vocoder.advance([Chunk(state, whole[:, 60:], final=True)])[0]
    again = vocoder.advance([Chunk(kept, whole[:, 60:], final=True)])[0]
    assert torch.equal(first, again)


@torch.inference_mode()
def test_memory_of_a_stream_is_bounded(vocoder: Vocoder) -> None:
    state = vocoder.begin(noise(samples=480_000))
    sizes = set()
    for _ in range(12):
        vocoder.advance([Chunk(state, mel(50), final=False)])
        sizes.add((state.mel.numel(), state.source.numel(), state.mel.untyped_storage().nbytes()))
    assert len(sizes) <= 2


@torch.inference_mode()
def test_the_receptive_field_is_what_the_stream_keeps(vocoder: Vocoder) -> None:
    """One frame of mel, and one of source, are changed; the samples that move lie within `left` and `right` frames."""
    frames, at = 100, 50
    source = torch.randn(1, frames * 480, generator=torch.Generator().manual_seed(1)) * 0.3
    wide = vocoder.double()
    try:
        given = mel(frames)[None].double()
        base = wide.decode(given, source.double(), [frames])
        other = given.clone()
        other[:, :, at] += 3
        moved = [wide.decode(other, source.double(), [frames])]
        louder = source.double().clone()
        louder[:, at * 480 : (at + 1) * 480] += 0.3
        moved.append(wide.decode(given, louder, [frames]))
    finally:
        wide.float()
        wide.f0_predictor.double()
    for wave in moved:
        samples = ((wave - base).abs() > 1e-12).nonzero()[:, 1]
        assert int(samples.min()) >= (at - vocoder.right) * 480
        assert int(samples.max()) < (at + vocoder.left + 1) * 480


@torch.inference_mode()
def test_a_chunk_that_gives_nothing_yet_is_kept(vocoder: Vocoder) -> None:
    state = vocoder.begin(noise())
    assert vocoder.advance([Chunk(state, mel(2), final=False)])[0].shape == (0,)
    assert state.mel.shape == (80, 2)
    assert vocoder.advance([Chunk(state, mel(0), final=True)])[0].shape == (960,)
