"""Repetition-aware sampling, for all rows at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cosyvoice_worker.engine.modules.sampling import draw, nucleus, sample
from cosyvoice_worker.models.directory import SamplingConfig

CONFIG = SamplingConfig(top_p=0.8, top_k=25, window=10, tau=0.1)
NOTHING = torch.full((1, 10), -1)


def logits(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def one(row: Tensor, first: float, second: float = 0.0, recent: Tensor = NOTHING, banned: Tensor | None = None) -> int:
    return int(sample(row, recent, torch.tensor([[first, second]]), banned, CONFIG))


def test_the_nucleus_ends_with_the_token_that_reaches_top_p() -> None:
    probabilities, ids = nucleus(logits(0.1, 0.5, 0.35, 0.05), 0.8, 25)
    assert ids[0, :2].tolist() == [1, 2]
    assert (probabilities[0] > 0).tolist() == [True, True, False, False][: probabilities.shape[1]]


def test_the_nucleus_holds_at_most_top_k() -> None:
    probabilities, _ = nucleus(torch.zeros(1, 100), 0.99, 25)
    assert int((probabilities > 0).sum()) == 25


def test_equal_probabilities_go_by_id() -> None:
    row = torch.zeros(1, 40)
    row[0, [31, 7, 19]] = 5
    assert nucleus(row, 0.9, 3)[1].tolist() == [[7, 19, 31]]


def test_fewer_ids_than_top_k_are_no_error() -> None:
    assert one(logits(0.5, 0.5), 0.9) == 1


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.58, 1), (0.59, 2), (0.999999, 2)])
def test_the_draw_follows_the_probabilities_inside_the_nucleus(uniform: float, token: int) -> None:
    assert one(logits(0.1, 0.5, 0.35, 0.05), uniform) == token


def test_a_token_among_the_last_ten_is_drawn_again_from_all_the_others() -> None:
    recent = NOTHING.clone()
    recent[0, 3] = 1
    assert one(logits(0.1, 0.5, 0.35, 0.05), 0.0, 0.1, recent) == 0
    assert one(logits(0.1, 0.5, 0.35, 0.05), 0.0, 0.95, recent) == 3
    assert one(logits(0.1, 0.5, 0.35, 0.05), 0.9, 0.0, recent) == 2


def test_a_banned_token_never_comes_not_even_in_the_second_draw() -> None:
    banned = torch.tensor([[False, True, False, False]])
    recent = torch.tensor([[2] + [-1] * 9])
    for second in torch.linspace(0, 0.9999, 20).tolist():
        assert one(logits(0.1, 0.5, 0.35, 0.05), 0.0, second, recent, banned) in (0, 3)


def test_rows_do_not_know_of_one_another() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(16, 300, generator=generator) * 3
    recent = torch.randint(0, 300, (16, 10), generator=generator)
    uniforms = torch.rand(16, 2, generator=generator)
    together = sample(rows, recent, uniforms, None, CONFIG)
    alone = [int(sample(rows[[i]], recent[[i]], uniforms[[i]], None, CONFIG)) for i in range(16)]
    assert together.tolist() == alone


def test_draws_over_even_uniforms_have_the_distribution() -> None:
    weights = torch.tensor([0.2, 0.0, 0.5, 0.3])
    uniforms = (torch.arange(1000) + 0.5) / 1000
    counts = draw(weights.expand(1000, -1), uniforms).bincount(minlength=4)
    assert counts.tolist() == [200, 0, 500, 300]


def test_a_uniform_next_to_one_stays_inside() -> None:
    weights = torch.rand(1, 6561, generator=torch.Generator().manual_seed(1))
    weights[0, -100:] = 0
    assert int(draw(weights, torch.tensor([1 - 2**-24]))) == 6460
