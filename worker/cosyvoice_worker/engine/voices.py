"""Which voice a client means by the name it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cosyvoice_worker.engine.requests import Voice

OPENAI_VOICES: Final = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer", "verse", "marin", "cedar"),
)
"""Names that clients send without being told: they mean the default voice until a voice or an alias has the name."""


class VoiceBook:
    """The voices of this worker and the names that lead to them; names are trimmed and compared without case."""

    def __init__(self, voices: Iterable[Voice], aliases: Mapping[str, str] | None = None) -> None:
        """The first of `voices` (at least one) is the default. Raises ValueError for an alias that leads nowhere."""
        self.voices = tuple(voices)
        if not self.voices:
            raise ValueError("a worker needs at least one voice")
        own = {_key(voice.name): voice for voice in self.voices}
        self._by_name = {name: self.default for name in ("default", *OPENAI_VOICES)}
        for alias, target in (aliases or {}).items():
            if _key(target) not in own:
                raise ValueError(f"alias {alias!r} leads to {target!r}, which is none of {', '.join(own)}")
            self._by_name[_key(alias)] = own[_key(target)]
        self._by_name |= own

    @property
    def default(self) -> Voice:
        return self.voices[0]

    def find(self, name: str | None) -> Voice | None:
        """The voice called `name`, the default for None or an empty name, None when there is no such voice."""
        return self._by_name.get(_key(name)) if name and name.strip() else self.default

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the voices themselves, then of the aliases."""
        own = tuple(voice.name for voice in self.voices)
        known = set(map(_key, own))
        return own + tuple(alias for alias in self._by_name if alias not in known)


def _key(name: str) -> str:
    return name.strip().casefold()
