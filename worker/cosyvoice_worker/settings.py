"""Every setting of the worker: `COSYVOICE_<FIELD>` in the environment, `--<field>` on the command line.

The operator sets them (names: `cosyvoice_contract`); the command line wins. A wrong one stops the start with its name,
the value seen and the mend.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from cosyvoice_contract import BUILTIN_MODELS_DIR, DEFAULT_PROMPT_DIR, ENV_PREFIX, WORKER_PORT


class SettingsError(Exception):
    """The settings are not usable; the text has one line for each wrong one."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="ignore", cli_kebab_case=True, cli_implicit_flags=True
    )

    model_name: str = Field("", description="name of the model in /v1/models; default: that of its directory")
    model_dir: Path | None = Field(None, description="an official CosyVoice model directory")
    model_builtin: str = Field("", description="name of a model that the image carries, e.g. DemoEnglish")
    model_random: str = Field("", description="<size>:<seed>, e.g. Tiny:0: seeded random weights, for tests")
    builtin_models_dir: Path = Field(Path(BUILTIN_MODELS_DIR), description="where built-in models are")
    default_prompt_dir: Path = Field(
        Path(DEFAULT_PROMPT_DIR), description="holds default.wav and default.txt, the voice for models that bring none"
    )

    card: str = Field("", description="card that the pool asked for, e.g. T4; checked against the GPU; empty: no check")
    device: Literal["cuda", "cpu"] = Field("cuda", description="there is no fallback from cuda to cpu")
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    streams: float = Field(1.0, gt=0, le=100_000, description="first value of capacity, audio-s/s, until measured")
    max_running: int = Field(0, ge=0, le=4096, description="sequences in the LLM batch; 0: from the device")
    max_batch_frames: int = Field(0, ge=0, le=1_000_000, description="mel frames in a flow batch; 0: from the device")
    fixed_batch: bool = Field(
        False, description="a seeded request is the same audio whoever else is served, on a GPU too; slower"
    )
    max_queued: int = Field(0, ge=0, le=100_000, description="requests that may wait; 0: the engine's choice")
    queue_seconds: float = Field(30.0, gt=0, le=600, description="a request waits at most this long for its turn")
    memory_guard_percent: int = Field(85, ge=1, le=100)

    api_keys_dir: Path | None = Field(
        None, description="API keys, one file a name, one key a line; read when they change; none: everybody may speak"
    )
    voices_file: Path | None = Field(None, description="voices and aliases of the service, JSON; read when it changes")
    voice_store_dir: Path | None = Field(None, description="where uploaded voices are kept; none: no uploads")
    max_uploaded_voices: int = Field(200, ge=1, le=10_000, description="more uploads than these are refused")

    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="sites whose pages may ask this worker, e.g. https://app.example,https://b.example, or *; none"
    )

    ref_audio_urls: Literal["none", "https", "http"] = Field(
        "none", description="ref_audio may be an address on the internet: none, https, or both https and http"
    )

    listen_host: str = Field("", description="address to listen on; empty: all, IPv4 and IPv6")
    listen_port: int = Field(WORKER_PORT, ge=0, le=65535)
    """Not `port`: Kubernetes' service links would set COSYVOICE_PORT for a Service named `cosyvoice`."""
    drain_seconds: float = Field(330.0, ge=0, le=86_400, description="running streams may take this long on SIGTERM")
    write_stall_seconds: float = Field(
        60.0, gt=0, le=3600, description="a client that reads nothing for so long is cut"
    )
    session_seconds: float = Field(600.0, gt=0, le=86_400, description="a WebSocket session lasts no longer")
    session_idle_seconds: float = Field(
        30.0, gt=0, le=3600, description="a WebSocket session ends when its client says nothing for so long"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_texts: bool = Field(False, description="write what is spoken into the log")

    @field_validator("log_level", "precision", "device", "ref_audio_urls", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _separated_by_commas(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """As browsers write them."""
        origins = tuple(origin.lower() for origin in value)
        for origin in origins:
            parts = urlsplit(origin)
            plain = parts.hostname and parts.scheme in ("http", "https")
            if origin != "*" and not (plain and origin == f"{parts.scheme}://{parts.netloc}"):
                raise ValueError(f"{origin!r} is no origin; write https://host or https://host:port, without a path")
        if "*" in origins and len(origins) > 1:
            raise ValueError("* means every site; write it alone")
        return origins

    @field_validator("model_random")
    @classmethod
    def _size_and_seed(cls, value: str) -> str:
        size, _, seed = value.partition(":")
        if value and not (size and seed.isascii() and seed.isdigit()):
            raise ValueError("write <size>:<seed>, e.g. Tiny:0")
        return value

    @field_validator("model_builtin")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if "/" in value or value.startswith("."):
            raise ValueError("a name, not a path; for a directory use MODEL_DIR")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("model_dir", "model_builtin", "model_random") if getattr(self, name)]
        if len(given) != 1:
            seen = "none of them is" if not given else f"{' and '.join(f'{ENV_PREFIX}{g.upper()}' for g in given)} are"
            raise ValueError(
                f"set exactly one of {ENV_PREFIX}MODEL_DIR, {ENV_PREFIX}MODEL_BUILTIN, {ENV_PREFIX}MODEL_RANDOM; "
                f"{seen} set"
            )
        return self

    @property
    def served_name(self) -> str:
        """The model's name towards clients."""
        if self.model_name:
            return self.model_name
        if self.model_dir:
            return self.model_dir.resolve().name
        return self.model_builtin or self.model_random.replace(":", "-")


def read_settings(arguments: Sequence[str]) -> Settings:
    """Settings from the environment and `arguments`; `SettingsError` names every wrong one. `--help` exits."""
    try:
        return Settings(  # type: ignore[call-arg]
            _cli_parse_args=list(arguments), _cli_prog_name="cosyvoice-worker serve"
        )
    except ValidationError as error:
        raise SettingsError("\n".join(map(_line, error.errors()))) from None


def _line(error: object) -> str:
    assert isinstance(error, dict)
    message = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return message
    name = ".".join(str(part) for part in error["loc"]).upper()
    return f"{ENV_PREFIX}{name.removeprefix(ENV_PREFIX)}={error['input']!r}: {message}"
