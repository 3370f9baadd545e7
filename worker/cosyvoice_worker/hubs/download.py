"""Downloads a snapshot into a directory that is there as a whole or not at all.

What was begun is gone on with: complete files are checked and kept, parts are resumed, and the commit that was resolved
first stays the one, even if a branch has moved on meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub.file_download import http_get

from cosyvoice_worker.hubs.snapshot import HubError, HubFile, Snapshot

MARK: Final = ".fetched.json"
"""In a complete directory: `{"revision": <commit>, "bytes": <all files>}`."""
_BEGUN: Final = ".commit"
_PART: Final = ".part"
_BLOCK: Final = 1 << 20


@dataclass
class Progress:
    """Written by the download, read by whoever asks."""

    revision: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Fetched:
    revision: str
    bytes: int


def fetch(target: Path, revision: str, resolve: Callable[[str], Snapshot], progress: Progress) -> Fetched:
    """`target`, of which the parent exists, is filled or was before. Raises HubError and OSError."""
    with _alone(target):
        if target.is_dir():
            return _complete(target, progress)
        work = target.with_name(f".{target.name}{_PART}")
        work.mkdir(exist_ok=True)
        begun = work / _BEGUN
        snapshot = resolve(begun.read_text() if begun.exists() else revision)
        begun.write_text(snapshot.commit)
        progress.revision, progress.total = snapshot.commit, snapshot.size
        _room(work, snapshot)
        for file in snapshot.files:
            _one(work / file.path, file, snapshot, progress)
        fetched = Fetched(snapshot.commit, snapshot.size)
        (work / MARK).write_text(json.dumps({"revision": fetched.revision, "bytes": fetched.bytes}))
        begun.unlink()
        _flush(work)
        os.replace(work, target)
        _flush(target.parent)
        return fetched


def _complete(target: Path, progress: Progress) -> Fetched:
    try:
        mark = json.loads((target / MARK).read_text())
        fetched = Fetched(mark["revision"], mark["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        raise HubError(f"{target} exists and was not made by this command; move it away") from None
    progress.revision, progress.done, progress.total = fetched.revision, fetched.bytes, fetched.bytes
    return fetched


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """A node that was given up may still write while another has taken over."""
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HubError(f"another process is downloading into {target}") from None
        yield


def _room(work: Path, snapshot: Snapshot) -> None:
    present = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    missing, free = snapshot.size - present, shutil.disk_usage(work).free
    if missing > free:
        raise HubError(f"the volume has {_gib(free)} free and {_gib(missing)} are missing; make it larger")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _one(path: Path, file: HubFile, snapshot: Snapshot, progress: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + _PART)
    before = progress.done
    if path.exists():
        if _matches(path, file):
            progress.done = before + file.size
            return
        path.unlink()
    have = part.stat().st_size if part.exists() else 0
    if have > file.size:
        part.unlink()
        have = 0
    with part.open("ab") as opened:
        if have < file.size:
            counting = _Counting(opened, progress)
            progress.done = before + have
            http_get(
                file.url,
                counting,  # type: ignore[arg-type]
                resume_size=have,
                headers=dict(snapshot.headers),
                expected_size=file.size,
            )
        opened.flush()
        os.fsync(opened.fileno())
    if not _matches(part, file):
        part.unlink()
        raise HubError(f"{file.path} arrived with another checksum than the hub states; it is downloaded again")
    os.replace(part, path)
    progress.done = before + file.size


class _Counting:
    """A file that tells how far it has come."""

    def __init__(self, file: object, progress: Progress) -> None:
        self._file = file
        self._progress = progress

    def write(self, block: bytes) -> int:
        self._progress.done += len(block)
        written: int = self._file.write(block)  # type: ignore[attr-defined]
        return written

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def _matches(path: Path, file: HubFile) -> bool:
    """By the sum that the hub keeps: SHA-256 of large files, git's own of small ones."""
    size = path.stat().st_size
    if size != file.size:
        return False
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest() == (file.sha256 or file.git_sha1)


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
