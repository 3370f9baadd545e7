"""Files that may change while the worker runs: what has become of each change, and how it is noticed.

They are looked at again and again rather than watched: inotify sees neither what another node wrote to a network
volume nor, reliably, the swap of a symbolic link by which Kubernetes updates a mounted ConfigMap or Secret.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""A change is taken over within this time after it has reached the mounted file."""

Fingerprint = tuple[int, int, int]
"""Of a file's content: (mtime in ns, inode, size)."""


def fingerprint(file: Path) -> Fingerprint | None:
    """Symbolic links are followed; None where there is no such file."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


class Reloads:
    """Counts, and logs once each, what was taken over and what could not be."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._problems: dict[tuple[str, str], str] = {}

    def taken(self, what: str, which: str = "", **fields: object) -> None:
        """`what` (a kind of thing; `which` of them) was read and is in use from now on."""
        self._problems.pop((what, which), None)
        self._counts[what, "taken"] += 1
        log.info("taken over", extra={"what": what, "which": which} | fields)

    def failed(self, what: str, problem: str, which: str = "") -> None:
        """It is not usable; `problem` says why and what counts instead. The same problem again is not news."""
        if self._problems.get((what, which)) == problem:
            return
        self._problems[what, which] = problem
        self._counts[what, "failed"] += 1
        log.error("not taken over", extra={"what": what, "which": which, "problem": problem})

    def counts(self) -> Iterator[tuple[str, str, int]]:
        """(what, taken or failed, how often)."""
        for (what, outcome), count in sorted(self._counts.items()):
            yield what, outcome, count


async def follow(refresh: Callable[[], None]) -> None:
    """Call `refresh` in a thread, again and again, for ever; a slow volume holds up nothing else."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        try:
            await asyncio.to_thread(refresh)
        except Exception:
            log.exception("looking at files failed; trying again")
