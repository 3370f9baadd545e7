"""The voices and aliases of the service: a mounted `contract.VoicesConfig` and the recordings that it names."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cosyvoice_worker.engine.frontend.recording import RecordingError
from cosyvoice_worker.engine.recorded_voices import RecordedVoices
from cosyvoice_worker.engine.voices import KnownVoice, key_of
from cosyvoice_worker.live_files import Fingerprint, Reloads, fingerprint
from cosyvoice_worker.voices.store import MAX_RECORDING_BYTES

_WHAT: Final = "voices_file"
_VOICE: Final = "preset_voice"
_MAX_FILE_BYTES: Final = 4 << 20
"""A ConfigMap holds 1 MiB."""


class _Preset(BaseModel):
    """`contract.PresetVoice`."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(max_length=256)
    text: str
    file: Path

    @field_validator("name")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("a voice needs a name")
        return value.strip()

    @field_validator("file")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        if not value.is_absolute():
            raise ValueError("write the absolute path of the recording")
        return value


class _Config(BaseModel):
    """`contract.VoicesConfig`."""

    preset: list[_Preset] = []
    aliases: dict[str, str] = {}

    @field_validator("preset")
    @classmethod
    def _named_once(cls, presets: list[_Preset]) -> list[_Preset]:
        seen: set[str] = set()
        for preset in presets:
            if key_of(preset.name) in seen:
                raise ValueError(f"two voices are called {preset.name!r}; rename one")
            seen.add(key_of(preset.name))
        return presets

    @field_validator("aliases")
    @classmethod
    def _no_empty_name(cls, aliases: dict[str, str]) -> dict[str, str]:
        for alias, target in aliases.items():
            if not alias.strip() or not target.strip():
                raise ValueError(f"the alias {alias!r} -> {target!r} lacks a name")
        return aliases


class PresetVoices:
    """What the file says, computed. A file that is not usable changes nothing; a recording that is not usable makes its
    voice unavailable and no other."""

    def __init__(self, file: Path | None, recorded: RecordedVoices, reloads: Reloads) -> None:
        self.aliases: dict[str, str] = {}
        self._file = file
        self._recorded = recorded
        self._reloads = reloads
        self._content: bytes | None = None
        self._presets: list[_Preset] = []
        self._made: dict[_Preset, tuple[Fingerprint | None, KnownVoice]] = {}

    @property
    def voices(self) -> tuple[KnownVoice, ...]:
        """In the file's order."""
        return tuple(self._made[preset][1] for preset in self._presets)

    def refresh(self) -> None:
        """Take over what has changed. Reads files and computes voices: for a thread."""
        if self._file is None:
            return
        self._read(self._file)
        made = {preset: self._fresh(preset) for preset in self._presets}
        self._made = made

    def _read(self, file: Path) -> None:
        try:
            with file.open("rb") as opened:
                content = opened.read(_MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            content = b""
        except OSError as error:
            self._reloads.failed(_WHAT, f"{file}: cannot be read ({error.strerror}); the voices before stay")
            return
        if content == self._content:
            return
        if len(content) > _MAX_FILE_BYTES:
            self._reloads.failed(_WHAT, f"{file}: is larger than {_MAX_FILE_BYTES} bytes; the voices before stay")
            return
        try:
            config = _Config.model_validate_json(content or b"{}")
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            self._reloads.failed(_WHAT, f"{file}: {where}: {first['msg']}; the voices before stay")
            return
        known = self._content is not None or content
        self._content, self._presets, self.aliases = content, config.preset, config.aliases
        if known:
            names = [preset.name for preset in config.preset]
            self._reloads.taken(_WHAT, voices=names, aliases=sorted(config.aliases))

    def _fresh(self, preset: _Preset) -> tuple[Fingerprint | None, KnownVoice]:
        """The voice as it was made before, or made anew of a recording that has changed."""
        try:
            now = fingerprint(preset.file)
        except OSError:
            now = None
        before = self._made.get(preset)
        if before is not None and before[0] == now:
            return before
        try:
            voice = self._recorded.voice(_bytes_of(preset.file), preset.text, preset.name)
        except (RecordingError, OSError) as error:
            reason = str(error) if isinstance(error, RecordingError) else "its recording cannot be read"
            self._reloads.failed(_VOICE, f"{preset.file}: {error}", preset.name)
            return now, KnownVoice(preset.name, "preset", problem=reason)
        self._reloads.taken(_VOICE, preset.name, file=str(preset.file))
        return now, KnownVoice(preset.name, "preset", voice)


def _bytes_of(file: Path) -> bytes:
    """Raises OSError, and RecordingError for what is no file of a recording's size."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise RecordingError("the recording is no file; name a file")
    if status.st_size > MAX_RECORDING_BYTES:
        raise RecordingError(
            f"the recording has {status.st_size} bytes, at most {MAX_RECORDING_BYTES} are taken; cut it to 3 to 10 s"
        )
    return file.read_bytes()
