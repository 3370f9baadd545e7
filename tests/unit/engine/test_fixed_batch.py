"""Decoding in fixed shapes: padding changes no token, and in a fixed batch nobody hears who else is served."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from cosyvoice_worker.engine.blocks import Attention
from cosyvoice_worker.engine.decoding import COLUMNS
from cosyvoice_worker.engine.modules.flow import Window
from tests.unit.engine.tiny import Bench, Told, alone, model, request

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


@pytest.fixture
def rounds_by_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, made coarse: results depend on how many rows and columns are computed together."""
    loaded = model()
    speech, flow = loaded.lm.forward, loaded.flow.forward

    def speak(x: torch.Tensor, positions: torch.Tensor, attend: Attention) -> torch.Tensor:
        columns = 0 if attend.read_from is None else attend.read_from.shape[1]
        return speech(x, positions, attend) * (1 + 1e-2 * len(x) + 1e-4 * columns)

    def decode(windows: Sequence[Window]) -> list[torch.Tensor]:
        return [mel + 1e-2 * len(windows) for mel in flow(windows)]

    monkeypatch.setattr(loaded.lm, "forward", speak)
    monkeypatch.setattr(loaded.flow, "forward", decode)


def equal(apart: int, *, fixed: bool) -> bool:
    """Whether requests that run together give, to the last bit, what each gives alone."""

    def bench() -> Bench:
        return Bench(slots=4, blocks=32, fixed=fixed)

    singles = [served(bench(), (asked,))[0] for asked in ASKED]
    together = served(bench(), ASKED, apart)
    return all(
        one.tokens == single.tokens and np.array_equal(one.pcm, single.pcm)
        for one, single in zip(together, singles, strict=True)
    )


@pytest.mark.usefixtures("rounds_by_shape")
def test_in_a_fixed_batch_a_request_is_the_same_to_the_last_bit_whoever_else_runs() -> None:
    assert not equal(0, fixed=False), "the shape is felt"
    assert equal(0, fixed=True)
    assert equal(13, fixed=True)
