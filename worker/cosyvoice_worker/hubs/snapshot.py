"""What a hub says of a repository at one commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Final

UNUSED: Final = ("*.zip", "*.plan", "*.engine", "flow.decoder.estimator.*", "asset/*", ".git*", "*/.git*")
"""Compiled variants and pictures that official repositories carry and a worker does not read: gigabytes."""


class HubError(Exception):
    """The model cannot be had; the text says why and how to mend it, and holds no secret."""


@dataclass(frozen=True, slots=True)
class HubFile:
    path: str
    size: int
    url: str
    sha256: str = ""
    """Empty where the hub knows the file by `git_sha1` only, as it does small ones."""
    git_sha1: str = ""

    def __post_init__(self) -> None:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise HubError(f"the hub names a file {self.path!r}, which would leave the model's directory")
        if not self.sha256 and not self.git_sha1:
            raise HubError(f"the hub has no checksum of {self.path}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    commit: str
    files: tuple[HubFile, ...]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of every download; may hold the token, so they are never shown."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def used(path: str) -> bool:
    """Whether a worker may read the file."""
    return not any(fnmatch(path, pattern) for pattern in UNUSED)
