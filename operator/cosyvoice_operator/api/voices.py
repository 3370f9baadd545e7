"""The voices that every worker of a service knows, beside its model's own."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from cosyvoice_operator.api.base import DnsSubdomain, Model, cel, list_map

VoiceName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^\S(.*\S)?$")]
_DataKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]

SOURCES = ("configMapKeyRef", "secretKeyRef", "path")
_ONE_SOURCE = f"exactly one of {', '.join(SOURCES)} is required"
_STORE_FOR_PATHS = "store is required where a preset's audio is a path, which is a file in the store"
PRESETS_MAX = 64


class KeyReference(Model):
    """A key of an object in the service's namespace."""

    name: DnsSubdomain
    key: _DataKey


class Recording(Model):
    """3 to 10 seconds of one speaker, in any format that `ref_audio` takes: exactly one of these."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (f"[{', '.join(f'has(self.{name})' for name in SOURCES)}].filter(given, given).size() == 1", _ONE_SOURCE)
        )
    )

    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap (`kubectl create configmap voices --from-file=anna.wav`), of up to 1 MiB in all."""
    secret_key_ref: KeyReference | None = None
    """A key of a Secret, of up to 1 MiB in all. The operator does not read it: it is mounted into the workers."""
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^/.][^/]*(/[^/.][^/]*)*$")] | None = None
    """A file in the store, relative to its root."""

    @model_validator(mode="after")
    def exactly_one(self) -> Self:
        if [self.config_map_key_ref, self.secret_key_ref, self.path].count(None) != len(SOURCES) - 1:
            raise ValueError(_ONE_SOURCE)
        return self


class PresetVoice(Model):
    """A voice that is cloned from a recording; it goes before a voice of the model of that name."""

    name: VoiceName
    text: Annotated[str, Field(min_length=1, max_length=2000)]
    """What is said in the recording, word by word."""
    audio: Recording


class ClaimReference(Model):
    claim_name: DnsSubdomain


class VoiceStore(Model):
    """Where the voices are kept that clients upload: all workers read and write it."""

    persistent_volume_claim: ClaimReference
    """A claim in the service's namespace; with several workers its access mode must be ReadWriteMany."""


class Voices(Model):
    """Changes reach running workers within about a minute. Workers are replaced only where their pods have to mount
    something else: another store, or a ConfigMap or Secret that no preset named before."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.store) || !has(self.preset) || self.preset.all(voice, !has(voice.audio.path))",
                _STORE_FOR_PATHS,
            )
        )
    )

    preset: Annotated[list[PresetVoice], Field(max_length=PRESETS_MAX, json_schema_extra=list_map("name"))] = Field(
        default_factory=list
    )
    """A recording that is missing or not usable makes its voice unavailable, and no other."""
    store: VoiceStore | None = None
    """Without it uploads are refused."""
    aliases: Annotated[dict[str, VoiceName], Field(max_length=PRESETS_MAX)] = Field(default_factory=dict)
    """Another name -> a voice, e.g. `alloy: anna`, so that clients of OpenAI's get a voice of yours."""

    @model_validator(mode="after")
    def names_once(self) -> Self:
        """As the workers compare them."""
        seen: dict[str, str] = {}
        for name in (voice.name for voice in self.preset):
            if (other := seen.setdefault(name.casefold(), name)) is not name:
                raise ValueError(f"preset: the names {other!r} and {name!r} mean the same; rename one")
        if any(not alias.strip() for alias in self.aliases):
            raise ValueError("aliases: a name is empty; remove it")
        return self

    @model_validator(mode="after")
    def paths_have_a_store(self) -> Self:
        if self.store is None and any(voice.audio.path is not None for voice in self.preset):
            raise ValueError(_STORE_FOR_PATHS)
        return self
