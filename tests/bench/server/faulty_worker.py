"""A worker as it is, whose engine fails now and then while the file `$BENCH_FAULTS` exists.

Its connections take little unsent audio into the kernel, so that a client that does not read is felt after a sentence,
not after a minute of speech.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from cosyvoice_worker import __main__, server
from cosyvoice_worker.engine.audio_runner import AudioRunner
from cosyvoice_worker.engine.engine import Engine
from cosyvoice_worker.engine.llm_runner import LlmRunner

P = ParamSpec("P")
R = TypeVar("R")
Fault = tuple[float, Callable[[], None]]
"""How likely at a call, and what it does."""
SEND_BUFFER = 16 << 10


def no_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a fault of the bench")


def kernel_fault() -> None:
    raise RuntimeError("a kernel failed: a fault of the bench")


def slow_step() -> None:
    time.sleep(0.5)


def failing(run: Callable[P, R], switch: Path, *faults: Fault) -> Callable[P, R]:
    """`run`, before which one of the faults may happen while the switch is there."""
    chance = random.Random(run.__qualname__)

    def run_or_fail(*args: P.args, **kwargs: P.kwargs) -> R:
        if switch.exists():
            for probability, happen in faults:
                if chance.random() < probability:
                    happen()
        return run(*args, **kwargs)

    return run_or_fail


def install(switch: Path) -> None:
    """Memory runs out in both stages, a batch fails, a step takes long, and the engine itself falls over."""
    AudioRunner.run = failing(AudioRunner.run, switch, (0.1, no_memory), (0.02, kernel_fault))  # type: ignore[method-assign]
    LlmRunner.step = failing(LlmRunner.step, switch, (0.01, no_memory), (0.003, kernel_fault))  # type: ignore[method-assign]
    Engine.step = failing(Engine.step, switch, (0.003, slow_step), (0.001, kernel_fault))  # type: ignore[method-assign]
    listen = server.listen

    def listen_with_small_buffers(host: str, port: int) -> socket.socket:
        sock = listen(host, port)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted connections inherit it
        return sock

    server.listen = listen_with_small_buffers


if __name__ == "__main__":
    install(Path(os.environ["BENCH_FAULTS"]))
    sys.exit(__main__.main())
