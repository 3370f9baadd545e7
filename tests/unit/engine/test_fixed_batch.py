"""Decoding in fixed shapes: padding changes no token, and in a fixed batch nobody hears who else is served."""

from __future__ import annotations

import numpy as np
import pytest

from cosyvoice_worker.engine.decoding import COLUMNS
from tests.unit.engine.tiny import Bench, Told, alone, request

ASKED = (("Hi there you.", 1, 30, True), ("One two three. Four five six.", 2, 0, True), ("Hi.", 3, 30, False))


def served(bench: Bench, asked: tuple[tuple[str, int, int, bool], ...], apart: int = 0) -> list[Told]:
    told = []
    for text, seed, prompt, streaming in asked:
        told.append(bench.add(request(text, seed=seed, prompt=prompt, streaming=streaming)))
        for _ in range(apart):
            bench.step()
    bench.finish()
    return told


def test_padded_rows_and_columns_change_no_token() -> None:
    bench = Bench(slots=4)
    bench.engine.llm.shaped = True
    for one, asked in zip(served(bench, ASKED, apart=7), ASKED, strict=True):
        assert one.tokens == alone(*asked).tokens


def test_shapes_are_few() -> None:
    decoding = Bench(slots=6, blocks=64).engine.llm._decoding
    assert {decoding.shape(rows, 1)[0] for rows in range(1, 7)} == {1, 2, 4, 6}
    assert {decoding.shape(1, columns)[1] for columns in range(1, 66)} == {*range(COLUMNS, 65, COLUMNS), 65}


@pytest.mark.parametrize("apart", [0, 13])
def test_in_a_fixed_batch_a_request_is_the_same_to_the_last_bit_whoever_else_runs(apart: int) -> None:
    def fixed() -> Bench:
        return Bench(slots=4, blocks=32, fixed=True)

    singles = [served(fixed(), (asked,))[0] for asked in ASKED]
    together = served(fixed(), ASKED, apart)
    for one, single in zip(together, singles, strict=True):
        assert one.tokens == single.tokens
        np.testing.assert_array_equal(one.pcm, single.pcm)
