"""Draws are addressed, not consumed."""

import torch

from cosyvoice_worker.engine.randomness import Draws, Stage, philox


def test_philox_gives_the_published_answers() -> None:
    # Known-answer vectors of the Random123 distribution (kat_vectors, philox4x32, 10 rounds).
    one = torch.tensor([0xFFFFFFFF])
    assert philox((0, 0), (torch.tensor([0]), torch.tensor([0]), 0, 0)).tolist() == [
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ]
    assert philox((0xFFFFFFFF, 0xFFFFFFFF), (one, one, 0xFFFFFFFF, 0xFFFFFFFF)).tolist() == [
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    ]


def test_a_piece_is_the_same_as_that_part_of_the_whole() -> None:
    draws = Draws(seed=7, sentence=2, stage=Stage.VOCODER)
    for kind in (draws.uniform, draws.normal):
        whole = kind(0, 1000)
        assert torch.equal(torch.cat([kind(0, 13), kind(13, 500), kind(513, 487)]), whole)


def test_seed_sentence_and_stage_each_change_the_draws() -> None:
    base = Draws(1, 0, Stage.SAMPLING).uniform(0, 8)
    for other in (Draws(2, 0, Stage.SAMPLING), Draws(1, 1, Stage.SAMPLING), Draws(1, 0, Stage.VOCODER)):
        assert not torch.equal(other.uniform(0, 8), base)
    assert not torch.equal(Draws(1 + (1 << 40), 0, Stage.SAMPLING).uniform(0, 8), base)


def test_the_distributions_are_what_they_say() -> None:
    uniform = Draws(3, 0, Stage.SAMPLING).uniform(0, 200_000)
    assert 0 < uniform.min() < 1e-4
    assert 1 - 1e-4 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 3e-3
    normal = Draws(3, 0, Stage.VOCODER).normal(0, 200_000)
    assert abs(normal.mean()) < 1e-2
    assert abs(normal.std() - 1) < 1e-2
    assert abs((normal[:-1] * normal[1:]).mean()) < 1e-2
