"""Who may speak: the keys in a mounted directory, `contract.ENV_API_KEYS_DIR`."""

from __future__ import annotations

import hashlib
import hmac
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cosyvoice_worker.live_files import Reloads

_WHAT: Final = "api_keys"
_MAX_FILE_BYTES: Final = 1 << 20
"""A Secret holds 1 MiB."""
_ATTEMPTS: Final = 3
"""To read the directory while it is being replaced."""

_Digests = Mapping[str, frozenset[bytes]]
"""Name -> what its keys hash to. The keys themselves are not kept."""


class ApiKeys:
    """The keys as the directory has them now. Whatever is wrong with it, nobody gets in by that."""

    def __init__(self, folder: Path, reloads: Reloads) -> None:
        """Reads the directory: refused from the start is who may not, also while the model is loaded."""
        self._folder = folder
        self._reloads = reloads
        self._digests: _Digests = {}
        self.refresh()

    def name_of(self, key: str) -> str | None:
        """What the key is called; None for one that is not known. The time it takes tells nothing about the keys."""
        given, name = _digest(key.encode("utf-8", "surrogateescape")), None
        for known, digests in self._digests.items():
            for digest in digests:
                if hmac.compare_digest(digest, given):
                    name = known  # and on, so that every key is compared
        return name

    def refresh(self) -> None:
        """Take over what has changed. Reads files: for a thread."""
        problems: list[str] = []
        try:
            digests = self._read(problems)
        except OSError as error:
            digests = {}
            problems = [error.strerror or str(error)]
        before, self._digests = self._digests, digests
        if digests and digests != before:
            self._reloads.taken(_WHAT, keys=sorted(digests))
        if not digests:
            self._reloads.failed(_WHAT, "; ".join([str(self._folder), *problems, "no key: every request is refused"]))
        elif problems:
            self._reloads.failed(_WHAT, "; ".join([str(self._folder), *problems]))

    def _read(self, problems: list[str]) -> _Digests:
        for attempt in range(1, _ATTEMPTS + 1):
            problems.clear()
            try:
                return {file.name: digests for file in self._files() if (digests := _keys_of(file, problems))}
            except FileNotFoundError:  # listed, and gone: the kubelet replaces all files at once
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError

    def _files(self) -> Iterator[Path]:
        """Those of a Secret's entries; what begins with a dot is how Kubernetes replaces them."""
        for file in sorted(self._folder.iterdir()):
            if not file.name.startswith(".") and stat.S_ISREG(file.stat().st_mode):
                yield file


def _keys_of(file: Path, problems: list[str]) -> frozenset[bytes]:
    """None of them where one line cannot be a key: its owner notices at once, and the log says which."""
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        problems.append(f"{file.name} opens nothing: {error.strerror}")
        return frozenset()
    if len(content) > _MAX_FILE_BYTES:
        problems.append(f"{file.name} opens nothing: it is larger than {_MAX_FILE_BYTES} bytes")
        return frozenset()
    keys = [line.strip() for line in content.splitlines()]
    for number, key in enumerate(keys, 1):
        if not all(0x21 <= byte <= 0x7E for byte in key):
            problems.append(f"{file.name} opens nothing: its line {number} is not all of visible ASCII characters")
            return frozenset()
    return frozenset(_digest(key) for key in keys if key)


def _digest(key: bytes) -> bytes:
    """Of one length, whatever the key's."""
    return hashlib.sha256(key).digest()
