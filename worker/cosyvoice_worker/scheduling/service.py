"""The one object that the HTTP API talks to: takes requests, gives audio, tells how loaded it is.

The bodies follow; the signatures are final. Usage from asyncio:

    service = SpeechService(model, Options(model_name="DemoEnglish"))
    await service.start()
    stream = service.submit(request)            # Refused at once when full or draining
    async for pcm in stream: ...                # float32 in -1..1, (n,), at service.sample_rate
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cosyvoice_worker.engine.requests import Reading, SynthesisRequest, Usage, Voice

if TYPE_CHECKING:
    from cosyvoice_worker.models.build import LoadedModel


@dataclass(frozen=True, slots=True)
class Options:
    """What the worker's settings say about the engine; 0 = the engine's own choice for its device."""

    model_name: str
    streams: float = 0.0
    """First value of capacity, audio-s/s (COSYVOICE_STREAMS)."""
    max_running: int = 0
    max_batch_frames: int = 0
    max_queued: int = 0
    queue_seconds: float = 30.0
    """A request waits at most this long for its turn."""


class SpeechStream(AsyncIterator["NDArray[np.float32]"]):
    """The audio of one request, in order. Not restartable, one reader.

    Iteration raises `SynthesisFailed` when the request cannot be finished, and `Refused` when it waited in the queue
    longer than it may (nothing was given out then: the API may still answer 429).
    """

    usage: Usage | None = None
    """Set when the stream is exhausted."""

    async def __anext__(self) -> NDArray[np.float32]:
        raise NotImplementedError

    def cancel(self) -> None:
        """Stop the work and free its slot and blocks at the next step; safe to call at any time and twice."""
        raise NotImplementedError


class SpeechService:
    """Thread-safe; made and used in one asyncio event loop, works in a thread of its own."""

    sample_rate: int
    model_name: str
    voices: Mapping[str, Voice]
    """Presets of the model directory."""

    def __init__(self, model: LoadedModel, options: Options) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Start the engine thread, synthesise once to warm up, measure a first capacity. Ready when it returns."""
        raise NotImplementedError

    def submit(self, request: SynthesisRequest) -> SpeechStream:
        """Take a request or raise `Refused` at once; never blocks."""
        raise NotImplementedError

    def reading(self) -> Reading:
        """The meters now; cheap, from any thread."""
        raise NotImplementedError

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the caller's drain time, not a cancel scope
        """Admit nothing more and let running and queued requests finish. True when all did within `timeout` seconds."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End the engine thread; what still runs fails with `SynthesisFailed`."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """Whether the engine makes progress; False means the process should be restarted."""
        raise NotImplementedError
