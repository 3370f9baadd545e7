"""How much arithmetic the work is, and how much of it the machine can do."""

from __future__ import annotations

import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cosyvoice_worker.engine.frontend.job import Frontend
from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.requests import SynthesisRequest, Voice
from cosyvoice_worker.engine.sizing import size_for
from cosyvoice_worker.scheduling.service import make_engine

SQUARES = (384, 768, 1536)
"""Sides of the matrices; which of them is fastest depends on the caches."""
TRIES = 2


def matmul_rate(threads: int) -> float:
    """The best rate at which torch multiplies float32 matrices now, in FLOP/s, with one thread or with `threads`."""
    usual = torch.get_num_threads()
    try:
        return max(_rate(count) for count in {1, threads})
    finally:
        torch.set_num_threads(usual)


def _rate(threads: int) -> float:
    torch.set_num_threads(threads)
    best = 0.0
    for side in SQUARES:
        a, b = torch.randn(side, side), torch.randn(side, side)
        calls = max(1, 1536**3 // side**3)
        for _ in range(TRIES):
            began = time.perf_counter()
            for _ in range(calls):
                a @ b
            best = max(best, calls * 2 * side**3 / (time.perf_counter() - began))
    return best


def flops(model: LoadedModel, frontend: Frontend, voice: Voice, text: str) -> int:
    """Floating-point operations of matrix products and convolutions for `text` alone, spoken whole: without padding."""
    engine = make_engine(model, size_for(model, max_running=1))
    engine.add(frontend.job(SynthesisRequest("flops", text, voice, seed=0, streaming=False), time.monotonic()))
    # The counter sees through attention only where it is done by matrix products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        while engine.jobs:
            engine.step()
    return int(counter.get_total_flops())
