"""Wherever memory runs out, every request gives what it gives alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cosyvoice_worker.engine
from cosyvoice_worker.engine.engine import Pcm
from cosyvoice_worker.engine.faults import (
    EMPTY_CACHE,
    GIVE_UP,
    HALVE,
    PUT_BACK,
    RECOVERY_SECONDS,
    SMALLEST_SHARE,
    MemoryPressure,
)
from cosyvoice_worker.engine.scheduler import Window
from tests.unit.engine.tiny import Bench, Told, alone, request

ENGINE = str(Path(cosyvoice_worker.engine.__path__[0]))
Site = tuple[str, int, Any]
P = ParamSpec("P")
R = TypeVar("R")
REPEATED = 40
"""Places per call of a stage at which it fails without the engine's knowledge."""


class RunsOut(TorchDispatchMode):
    """Raises where the engine lets torch allocate: once at every place, and at some of them `times` times in a row."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.met: set[Site] = set()
        self.raised: set[Site] = set()
        self.here: Site | None = None
        """The place at which it raises now."""
        self.left = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if allocates(func) and (site := self.site(func)):
            self.met.add(site)
            if site not in self.raised and not self.left:
                self.here, self.left = site, self.times
            if site == self.here and self.left:
                self.left -= 1
                self.raised.add(site)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a test")
        return func(*args, **(kwargs or {}))

    def around(self, run: Callable[P, R]) -> Callable[P, R]:
        """A stage that is called as it is, but for its failures at the first places, after which it is called again.

        So that all places are reached in the few steps of a short request, and every one shows that a stage which
        failed there has changed nothing.
        """

        def again(*args: P.args, **kwargs: P.kwargs) -> R:
            for _ in range(REPEATED if not self.left else 0):
                try:
                    return run(*args, **kwargs)
                except torch.OutOfMemoryError:
                    self.left = 0
            return run(*args, **kwargs)

        return again

    @staticmethod
    def site(func: Any) -> Site | None:
        """The innermost line of the engine that asked for it; None for what is the host's whatever the device."""
        frame = sys._getframe(2)
        found: Site | None = None
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(ENGINE):
                found = found or (code.co_filename, frame.f_lineno, func)
                if code.co_name in ("_draw", "_row", "_to_device", "to_device"):
                    return None  # draws that are made ahead and rows that are laid out before they are copied
                if code.co_name in ("step", "run"):
                    break
            frame = frame.f_back  # type: ignore[assignment]
        return found


@cache
def allocates(func: Any) -> bool:
    """Whether an operator returns memory of its own: no view, nothing in place."""
    return any(r.alias_info is None and "Tensor" in str(r.type) for r in func._schema.returns)


ASKED = (("Hi there you.", 1, 0, True), ("Hi there you.", 2, 30, True), ("Hi there you.", 3, 30, False))
"""Streamed and whole, with a recording and without: batches and joins of all kinds."""


def test_memory_that_runs_out_anywhere_loses_nobody() -> None:
    bench, mode = Bench(slots=3), RunsOut(times=5)
    engine = bench.engine
    engine.llm.step = mode.around(engine.llm.step)  # type: ignore[method-assign]
    engine.audio.run = mode.around(engine.audio.run)  # type: ignore[method-assign]
    told: list[Told] = []
    with mode:
        while not told or mode.met - mode.raised:
            assert len(told) < 12, mode.met - mode.raised
            told += [bench.add(request(t, seed=s, prompt=p, streaming=w)) for t, s, p, w in ASKED]
            bench.finish()
    for one, asked in zip(told, cycle(ASKED), strict=False):
        single = alone(*asked)
        assert not one.error
        assert one.tokens == single.tokens
        np.testing.assert_allclose(one.pcm, single.pcm, atol=5e-3)
    files = {Path(name).name for name, _, _ in mode.raised}
    assert {"llm_runner.py", "blocks.py", "qwen2.py", "sampling.py", "flow.py", "unet.py", "vocoder.py"} <= files
    assert len(mode.raised) > 150
    counted = engine.counters.faults.out_of_memory
    assert min(counted[EMPTY_CACHE], counted[HALVE], counted[PUT_BACK]) > 0
    assert counted[GIVE_UP] == 0
    assert engine.llm.pool.used == 0


def test_a_sentence_for_which_there_never_is_memory_fails_alone_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bad = bench.add(request("Hi there you.", seed=1))
    good = bench.add(request("Hi there you.", seed=2))
    run = bench.engine.audio.run

    def tight(windows: list[Window]) -> list[Pcm | None]:
        if any(w.sequence.job is bad.job for w in windows):
            raise torch.OutOfMemoryError("out of memory")
        return run(windows)

    monkeypatch.setattr(bench.engine.audio, "run", tight)
    bench.finish()
    assert "out of memory" in bad.error
    assert bench.now > 6.3, "it was tried for that long"
    assert good.tokens == alone("Hi there you.", 2, 0, True).tokens
    counted = bench.engine.counters.faults.out_of_memory
    assert (counted[PUT_BACK], counted[GIVE_UP]) == (6, 1)


def test_what_follows_is_planned_smaller_and_limits_recover_slowly() -> None:
    pressure = MemoryPressure()
    assert pressure.of(16_000) == 16_000
    for _ in range(10):
        pressure.ran_out(100.0)
    assert pressure.of(16_000) == 16_000 * SMALLEST_SHARE
    assert pressure.of(1) == 1
    pressure.recover(100.0 + RECOVERY_SECONDS / 2)
    assert pressure.share == SMALLEST_SHARE
    now = 100.0
    while pressure.share < 1.0:
        now += 1.0
        pressure.recover(now)
    assert 100 < now - 100.0 < 200


def test_a_batch_that_was_too_large_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    run, batches = bench.engine.audio.run, []

    def tight(windows: list[Window]) -> list[Pcm | None]:
        batches.append(len(windows))
        if len(windows) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return run(windows)

    monkeypatch.setattr(bench.engine.audio, "run", tight)
    told = [bench.add(request("Hi there you.", seed=seed, streaming=False)) for seed in range(3)]
    bench.finish()
    for seed, one in enumerate(told):
        assert one.tokens == alone("Hi there you.", seed, 0, False).tokens
    assert bench.engine.counters.faults.out_of_memory[HALVE] > 0
    assert bench.engine._sound_memory.share < 1.0
