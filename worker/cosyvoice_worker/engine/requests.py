"""What is asked of the engine, and what it gives back: the whole surface between scheduling and the HTTP API."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Voice:
    """Everything the model needs to know of a speaker, computed once per voice and kept.

    A preset (sft) voice has only an embedding; a prompted (zero-shot) voice also carries its recording as features.
    All tensors are on the CPU, without a batch dimension.
    """

    name: str
    embedding: torch.Tensor
    """(192,) float32: speaker embedding (CAM++)."""
    prompt_text: str = ""
    """What is said in the recording; empty for cross-lingual use and for preset voices."""
    prompt_tokens: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """(P,) int64: speech tokens of the recording, 25 a second."""
    prompt_mel: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 80))
    """(2P, 80) float32: its mel spectrogram, exactly two frames per speech token."""


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """One accepted piece of work: text in one voice."""

    request_id: str
    text: str
    """As the client sent it, validated and not empty; normalised and split by the engine's text frontend."""
    voice: Voice
    instruct: str = ""
    """How to speak (instruct mode), without the `<|endofprompt|>` mark."""
    language: str = ""
    """ISO 639-1, or empty to tell from the text."""
    seed: int | None = None
    """With a seed the same request gives the same audio (CPU, fp32); without one the engine draws it."""
    retry_key: str = ""
    """The same for a request and its retries, as far as the API can tell (client and text, or an idempotency key), so
    that demand counts a refused client once; empty: every refusal counts."""
    streaming: bool = True
    """True: audio is given as it is made (chunk-causal flow); False: a sentence is decoded whole, in best quality."""
    speed: float = 1.0


class Unspeakable(ValueError):
    """The request holds nothing that can be said, or more than the model can hold; the client must change it."""


class Refused(Exception):
    """The engine does not take a request now. Nothing was started and nothing is kept of it."""

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.reason = reason
        """`QueueFull`, `Draining` or `MemoryGuard`."""
        self.retry_after = retry_after
        """Seconds after which a retry is likely to be taken, from the measured rate."""


class SynthesisFailed(Exception):
    """An accepted request could not be finished; raised to whoever reads its audio, at once."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a finished request used."""

    text_tokens: int
    speech_tokens: int
    audio_seconds: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The engine's own meters at one moment (design: docs/architecture.md, "A stream, capacity, demand")."""

    demand: float
    """Audio seconds per second demanded: running, queued, backlog over 30 s, refused in the last 30 s. Idle is 0."""
    capacity: float
    """Audio seconds per second sustained; > 0."""
    capacity_measured: bool
    running: int
    queued: int
    kv_blocks_used: int
    kv_blocks_total: int
    draining: bool
