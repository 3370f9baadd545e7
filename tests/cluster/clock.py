"""Says what is being done and for how long: every line carries the time since the program started."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

_START = time.monotonic()
_HEARTBEAT_SECONDS = 60.0
_out = threading.Lock()


def say(message: str) -> None:
    """Print one line with the running clock, e.g. `[ 2:05] installing the chart`."""
    with _out:
        print(f"[{_clock()}] {message}", flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step, tick while it lasts (every second on a terminal, every minute elsewhere), print what it took."""
    started = time.monotonic()
    say(f"{title} ...")
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(title, started, done), daemon=True)
    ticker.start()
    outcome = "failed after"
    try:
        yield
        outcome = "done in"
    finally:
        done.set()
        ticker.join()
        say(f"{title}: {outcome} {time.monotonic() - started:.0f} s")


def _tick(title: str, started: float, done: threading.Event) -> None:
    terminal = sys.stdout.isatty()
    while not done.wait(1.0 if terminal else _HEARTBEAT_SECONDS):
        line = f"[{_clock()}] {title} ... {time.monotonic() - started:.0f} s"
        with _out:
            print(f"{line}\r" if terminal else line, end="" if terminal else "\n", flush=True)


def _clock() -> str:
    seconds = int(time.monotonic() - _START)
    return f"{seconds // 60:2d}:{seconds % 60:02d}"
