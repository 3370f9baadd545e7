"""Flow matching in batches: each row comes out as if it were alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cosyvoice_worker.engine.modules.flow import MAX_FRAMES, Flow, Window, WindowTooLong
from tests.unit.engine.tiny import model

CLOSE = 2e-5
"""CPU float32: padding changes the order of sums."""


@pytest.fixture(params=[2, 3])
def flow(request: pytest.FixtureRequest) -> Flow:
    return model(request.param).flow


def window(tokens: int, prompt: int, final: bool, streaming: bool, seed: int = 0) -> Window:
    generator = torch.Generator().manual_seed(seed)
    return Window(
        torch.randint(0, 6561, (tokens,), generator=generator),
        torch.randint(0, 6561, (prompt,), generator=generator),
        torch.randn(2 * prompt, 80, generator=generator),
        torch.randn(192, generator=generator),
        final,
        streaming,
    )


@torch.inference_mode()
def test_windows_of_every_kind_share_a_batch(flow: Flow) -> None:
    windows = [
        window(tokens, prompt, final, streaming, seed=tokens)
        for tokens, prompt, final, streaming in (
            (40, 12, True, False),
            (28, 0, False, True),
            (9, 0, True, True),
            (1, 3, True, False),
            (31, 5, False, False),
        )
    ]
    for together, one in zip(flow(windows), windows, strict=True):
        alone = flow([one])[0]
        assert together.shape == alone.shape
        assert float((together - alone).abs().max()) < CLOSE


@torch.inference_mode()
def test_streamed_frames_do_not_change_when_more_tokens_come(flow: Flow) -> None:
    whole = window(90, 25, True, True)
    early = flow([replace(whole, tokens=whole.tokens[:53], final=False)])[0]
    late = flow([whole])[0]
    assert early.shape[1] == 100
    assert float((early - late[:, :100]).abs().max()) < CLOSE


@torch.inference_mode()
def test_a_window_that_is_not_final_gives_two_frames_for_each_token_but_the_look_ahead(flow: Flow) -> None:
    assert flow([window(28, 10, False, True)])[0].shape == (80, 50)
    assert flow.frames(28, 10, final=False) == 70


def test_a_window_beyond_the_noise_is_refused_before_any_work(flow: Flow) -> None:
    with pytest.raises(WindowTooLong, match="15002 mel frames"):
        flow([window(MAX_FRAMES // 2 + 1, 0, True, False)])


@torch.inference_mode()
def test_half_precision_runs_and_stays_near(flow: Flow) -> None:
    import copy

    one = window(20, 5, True, False)
    wide = flow([one])[0]
    noise = flow.noise
    narrow_flow = copy.deepcopy(flow).bfloat16()
    narrow_flow.noise = noise
    narrow = narrow_flow([one])[0]
    assert narrow.dtype == torch.float32
    assert bool(narrow.isfinite().all())
    assert float((narrow - wide).square().mean().sqrt()) < 0.2 * float(wide.std())
