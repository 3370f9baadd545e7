"""The voices that clients upload: one file each in a directory that all workers of a service share.

A file is a line of JSON (name, text, time) and then the recording as it was sent. It comes and goes as a whole, by a
rename, so whoever reads it sees one upload and never a mixture; of two at the same time the later one stays. File
names are made of hashes: what a client calls a voice never becomes a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from cosyvoice_worker.engine.voices import key_of
from cosyvoice_worker.live_files import Fingerprint, Reloads, fingerprint

MAX_RECORDING_BYTES: Final = 10 << 20
"""30 s of 48 kHz stereo wav in 32 bit are 11.5 MB, in 24 bit 8.6 MB; a recording for a voice is much shorter."""

_WHAT: Final = "voice_store"
_VOICE: Final = "uploaded_voice"
_SUFFIX: Final = ".voice"
_UNFINISHED: Final = ".upload-"
_MAX_HEADER_BYTES: Final = 64 << 10
_ABANDONED_SECONDS: Final = 3600.0


class _Header(BaseModel):
    name: str
    text: str
    created: float


@dataclass(frozen=True, slots=True)
class StoredVoice:
    """One upload, as it is listed."""

    name: str
    created: float
    """Unix time, seconds."""


class VoiceStore:
    """Reads and writes files: for threads, one call at a time for `refresh`."""

    def __init__(self, folder: Path, reloads: Reloads) -> None:
        self.folder = folder
        self._reloads = reloads
        self._listed: dict[str, tuple[Fingerprint, StoredVoice | None]] = {}

    @property
    def voices(self) -> tuple[StoredVoice, ...]:
        """As of the last `refresh`, the oldest first."""
        present = [voice for _, voice in self._listed.values() if voice is not None]
        return tuple(sorted(present, key=lambda voice: (voice.created, voice.name)))

    def refresh(self) -> None:
        """Look at the directory again. One that cannot be read leaves the listing as it was."""
        listed: dict[str, tuple[Fingerprint, StoredVoice | None]] = {}
        try:
            files = [Path(entry.path) for entry in os.scandir(self.folder) if entry.name.endswith(_SUFFIX)]
            for file in files:
                mark = fingerprint(file)
                if mark is None:  # deleted just now
                    continue
                before = self._listed.get(file.name)
                listed[file.name] = before if before is not None and before[0] == mark else (mark, self._listing(file))
        except OSError as error:
            self._reloads.failed(_WHAT, f"{self.folder}: cannot be read ({error.strerror}); the voices before stay")
            return
        if self._names(listed) != self._names(self._listed):
            self._listed = listed
            self._reloads.taken(_WHAT, voices=len(self.voices))
        self._listed = listed

    def put(self, name: str, text: str, recording: bytes) -> StoredVoice:
        """Write a voice, or write over the one of that name. Raises OSError."""
        header = _Header(name=name, text=text, created=time.time())
        self._sweep()
        handle, unfinished = tempfile.mkstemp(prefix=_UNFINISHED, dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(header.model_dump_json().encode() + b"\n")
                file.write(recording)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(unfinished, 0o660)  # the workers of a service share a group, not always a user
            os.replace(unfinished, self._file(name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise
        return StoredVoice(name, header.created)

    def remove(self, name: str) -> bool:
        """False where there is no voice of that name (any more). Raises OSError."""
        try:
            self._file(name).unlink()
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> tuple[str, bytes]:
        """What is said in the recording, and the recording. Raises OSError, and ValueError for a damaged file."""
        with self._file(name).open("rb") as file:
            header = _header(file.readline(_MAX_HEADER_BYTES))
            recording = file.read(MAX_RECORDING_BYTES + 1)
        if len(recording) > MAX_RECORDING_BYTES:
            raise ValueError("the recording is too large")
        return header.text, recording

    def _file(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(key_of(name).encode()).hexdigest()[:40]}{_SUFFIX}"

    def _listing(self, file: Path) -> StoredVoice | None:
        try:
            with file.open("rb") as opened:
                header = _header(opened.readline(_MAX_HEADER_BYTES))
            if self._file(header.name) != file:
                raise ValueError("its name is not that of the voice in it")
        except FileNotFoundError:
            return None
        except ValueError as error:
            self._reloads.failed(_VOICE, f"{file}: {error}; upload the voice again", file.name)
            return None
        return StoredVoice(header.name, header.created)

    def _sweep(self) -> None:
        """Remove what uploads that never ended have left."""
        for entry in os.scandir(self.folder):
            if entry.name.startswith(_UNFINISHED):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS:
                        os.unlink(entry.path)

    @staticmethod
    def _names(listed: dict[str, tuple[Fingerprint, StoredVoice | None]]) -> set[StoredVoice | None]:
        return {voice for _, voice in listed.values()}


def _header(line: bytes) -> _Header:
    try:
        return _Header.model_validate(json.loads(line))
    except (ValueError, ValidationError):
        raise ValueError("the file is damaged") from None
