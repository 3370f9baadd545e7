"""Speed changes the length and nothing else, in one piece and in many."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cosyvoice_worker.engine.stretch import Stretch

MEL = torch.randn(4, 237, generator=torch.Generator().manual_seed(0))


def in_pieces(speed: float, cuts: list[int]) -> torch.Tensor:
    stretch, out = Stretch(speed), []
    edges = [0, *sorted(cuts), MEL.shape[1]]
    for start, stop in pairwise(edges):
        piece, stretch = stretch.advance(MEL[:, start:stop], final=stop == MEL.shape[1] and start < stop)
        out.append(piece)
    return torch.cat(out, 1)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.3, 2.0])
def test_a_whole_sentence_is_what_the_official_code_gives(speed: float) -> None:
    out, _ = Stretch(speed).advance(MEL, final=True)
    assert torch.equal(out, F.interpolate(MEL[None], size=int(237 / speed), mode="linear")[0])


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from([0.25, 0.5, 0.8, 1.0, 1.1, 1.5, 2.0, 3.7]), st.lists(st.integers(1, 236), min_size=1, max_size=6)
)
def test_pieces_join_to_one_curve(speed: float, cuts: list[int]) -> None:
    torch.testing.assert_close(in_pieces(speed, cuts), in_pieces(speed, [100]))


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_pieces_give_the_whole_where_the_length_divides_evenly(speed: float) -> None:
    even = MEL[:, :236]
    first, stretch = Stretch(speed).advance(even[:, :90], final=False)
    second, _ = stretch.advance(even[:, 90:], final=True)
    whole, _ = Stretch(speed).advance(even, final=True)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)
