"""Which voice a client means by the name it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from cosyvoice_worker.engine.requests import Voice

OPENAI_VOICES: Final = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse", "marin", "cedar"),
)
"""Names that clients send without being told: they mean the default voice until a voice or an alias has the name."""

DEFAULT: Final = "default"
"""The name of the voice of requests that name none; a voice or an alias of this name decides which one it is."""


@dataclass(frozen=True, slots=True)
class KnownVoice:
    """A voice that has a name here."""

    name: str
    source: Literal["model", "preset", "uploaded"]
    voice: Voice | None = field(default=None, compare=False)
    """None: an uploaded one, which is read when it is asked for, or one that is not available."""
    problem: str = ""
    """Why it is not available; empty when it is."""
    created: float = 0.0
    """Of an uploaded one: Unix time, seconds."""


class VoiceBook:
    """The voices of this worker and the names that lead to them; names are trimmed and compared without case."""

    def __init__(self, voices: Iterable[KnownVoice], aliases: Mapping[str, str] | None = None) -> None:
        """Of `voices` (at least one) with the same name the first counts. An alias of an alias leads nowhere."""
        self._own: dict[str, KnownVoice] = {}
        for voice in voices:
            self._own.setdefault(key_of(voice.name), voice)
        if not self._own:
            raise ValueError("a worker needs at least one voice")
        self._aliases = {key_of(alias): target for alias, target in (aliases or {}).items()}

    @property
    def voices(self) -> tuple[KnownVoice, ...]:
        return tuple(self._own.values())

    @property
    def default(self) -> KnownVoice:
        """What is called `default`, or the first voice."""
        return self._named(DEFAULT) or next(iter(self._own.values()))

    def source(self, name: str) -> str:
        """Where the name is from: `model`, `preset`, `uploaded` or `alias`; empty for a name that is free.

        OpenAI's names are free until a voice or an alias has them.
        """
        key = key_of(name)
        if key in self._own:
            return self._own[key].source
        return "alias" if key in self._aliases or key == DEFAULT else ""

    @property
    def aliases(self) -> dict[str, str]:
        """Each name that is no voice's own -> the name of its voice; those that lead nowhere are left out."""
        found = {name: self.find(name) for name in (*self._aliases, DEFAULT, *OPENAI_VOICES) if name not in self._own}
        return {name: voice.name for name, voice in found.items() if voice is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the voices themselves, then of the aliases."""
        return (*(voice.name for voice in self.voices), *self.aliases)

    def find(self, name: str | None) -> KnownVoice | None:
        """The voice called `name`, the default for None or an empty name, None when there is no such voice."""
        key = key_of(name or "")
        if key in self._own or key in self._aliases:
            return self._named(key)
        return self.default if key in ("", DEFAULT, *OPENAI_VOICES) else None

    def _named(self, key: str) -> KnownVoice | None:
        return self._own.get(key) or self._own.get(key_of(self._aliases.get(key, "")))


def key_of(name: str) -> str:
    """What two names that mean the same have in common."""
    return name.strip().casefold()
