"""The one object that the HTTP API talks to: takes requests, gives audio, tells how loaded it is.

service = SpeechService(model, Options(model_name="DemoEnglish"))
await service.start(voice)
stream = await service.submit(request)      # Refused at once when full or draining
async for pcm in stream: ...                # float32 in -1..1, (n,), at service.sample_rate

dictation = await service.dictate(request)  # text in pieces: append() and finish() from one task, read in another
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from cosyvoice_worker.device.memory import above_guard
from cosyvoice_worker.engine.audio_runner import AudioRunner
from cosyvoice_worker.engine.engine import Counters, Engine
from cosyvoice_worker.engine.frontend.arriving import ArrivingText
from cosyvoice_worker.engine.frontend.job import Frontend
from cosyvoice_worker.engine.llm_runner import LlmRunner
from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.requests import Reading, Refused, SynthesisRequest, Unspeakable, Voice
from cosyvoice_worker.engine.sizing import Sizing, cpu_threads, size_for
from cosyvoice_worker.scheduling.admission import Bounds
from cosyvoice_worker.scheduling.loop import EngineLoop, Ticket
from cosyvoice_worker.scheduling.stream import Dictation, SpeechStream, Unread

__all__ = ["Dictation", "Options", "SpeechService", "SpeechStream"]

log = logging.getLogger(__name__)

WARM_UP_TEXT = "Good morning, how are you today? The server is ready."
WARM_UP_SECONDS = 3.5
"""About how long that takes to say."""
CALIBRATION_SECONDS = 8.0
"""About how long the calibration batch may take."""


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
    fixed_batch: bool = False
    """A seeded request is the same audio whoever else is served, also on a GPU; slower."""
    memory_guard_percent: int = 85
    """Above that share of the GPU's memory new work waits."""


class SpeechService:
    """Made and used in one asyncio event loop; works in a thread of its own."""

    def __init__(self, model: LoadedModel, options: Options) -> None:
        if model.device.type == "cpu":
            torch.set_num_threads(cpu_threads())
        self.model_name = options.model_name
        self.sample_rate = model.config.sample_rate
        self.voices: Mapping[str, Voice] = model.voices
        """Presets of the model directory; may be empty."""
        self._sizing = sizing = size_for(
            model,
            max_running=options.max_running,
            max_frames=options.max_batch_frames,
            fixed=options.fixed_batch,
        )
        self._frontend = Frontend(
            model.tokenizer,
            model.config.version,
            max_positions=sizing.longest,
            max_speech_tokens=sizing.max_speech_tokens,
        )
        bounds = Bounds(
            max_running=sizing.limits.max_running,
            max_queued=options.max_queued or 4 * sizing.limits.max_running,
            queue_seconds=options.queue_seconds,
        )
        self._unread = Unread()
        self._loop = EngineLoop(
            lambda: make_engine(model, sizing),
            bounds,
            options.streams,
            memory_guard=lambda: above_guard(model.device, options.memory_guard_percent),
            unread_bytes=lambda: self._unread.bytes,
        )

    async def start(self, voice: Voice) -> None:
        """Start the engine thread, synthesise once to warm up, measure a first capacity. Ready when it returns.

        `voice`: the one that most requests will name, as its recording costs in every window.
        Raises `SynthesisFailed` when the model cannot speak.
        """
        self._loop.start()
        await self._timed(voice, 1, "Good morning.")
        alone = await self._timed(voice, 1)
        count = max(1, min(int(CALIBRATION_SECONDS * alone / WARM_UP_SECONDS), self._sizing.limits.max_running))
        rate = max(alone, await self._timed(voice, count)) if count > 1 else alone
        self._loop.capacity.calibrate(rate)
        log.info("calibrated", extra={"audio_seconds_per_second": round(rate, 2), "batch": count})

    async def _timed(self, voice: Voice, count: int, text: str = WARM_UP_TEXT) -> float:
        """Audio seconds per second of `count` warm-up requests at once."""
        began = time.monotonic()
        streams = [
            await self._submit(SynthesisRequest(f"warm-up-{i}", text, voice, seed=i), metered=False)
            for i in range(count)
        ]
        samples = sum([len(pcm) for stream in streams async for pcm in stream])
        return samples / self.sample_rate / (time.monotonic() - began)

    def would_refuse(self, text_length: int, retry_key: str = "") -> Refused | None:
        """The refusal of a text of so many bytes of UTF-8 (some four a text token), told before work is done on it.

        It counts as demand. None promises nothing: `submit` may still refuse.
        """
        return self._loop.would_refuse(math.ceil(text_length / 4), retry_key)

    async def submit(self, request: SynthesisRequest) -> SpeechStream:
        """Take a request, or raise at once: `Refused` when full or draining, `Unspeakable` when it cannot be made."""
        return await self._submit(request, metered=True)

    async def dictate(self, request: SynthesisRequest) -> Dictation:
        """Take a request whose text arrives in pieces, after that of `request`, which may be empty. Raises `Refused`.

        It holds one of the places for running requests until it is finished or cancelled, silent or not: who opens it
        bounds how long it stays open and how much text it takes.
        """
        job = self._frontend.open_job(request, time.monotonic())
        text = ArrivingText()
        ticket: Ticket | None = None

        def cancel() -> None:
            if ticket is not None:
                self._loop.cancel(ticket)

        async def add(piece: str, complete: bool) -> None:
            assert ticket is not None
            ready = text.add(piece) + (text.rest() if complete else "")
            try:
                spoken = await asyncio.to_thread(self._frontend.sentences, job, ready) if ready else []
            except Unspeakable:
                self._loop.extend(ticket, [], complete=complete)
                raise
            self._loop.extend(ticket, spoken, complete=complete)

        dictation = Dictation(cancel, add, self._unread)
        ticket = self._loop.submit(job, dictation)
        try:
            if request.text:
                await dictation.append(request.text)
        except BaseException:  # nobody else knows of it yet
            dictation.cancel()
            raise
        return dictation

    async def _submit(self, request: SynthesisRequest, *, metered: bool) -> SpeechStream:
        # A long text takes its normalisation tenths of a second, in which other streams want their audio sent.
        job = await asyncio.to_thread(self._frontend.job, request, time.monotonic())
        ticket: Ticket | None = None

        def cancel() -> None:
            if ticket is not None:
                self._loop.cancel(ticket)

        stream = SpeechStream(cancel, self._unread)
        ticket = self._loop.submit(job, stream, metered=metered)
        return stream

    def reading(self) -> Reading:
        """The meters now; cheap, from any thread."""
        return self._loop.reading()

    @property
    def counters(self) -> Counters:
        """What the engine has done since it started; for metrics and the bench."""
        return self._loop.engine.counters

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the caller's drain time, not a cancel scope
        """Admit nothing more and let running and queued requests finish. True when all did within `timeout` seconds."""
        return await asyncio.to_thread(self._loop.drain, timeout)

    async def stop(self) -> None:
        """End the engine thread; what still runs fails with `SynthesisFailed`."""
        await asyncio.to_thread(self._loop.stop)

    @property
    def alive(self) -> bool:
        """Whether the engine makes progress; False means the process should be restarted."""
        return self._loop.alive


def make_engine(model: LoadedModel, sizing: Sizing) -> Engine:
    """An engine with empty pools. Raises what the device raises when it is lost."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    llm = LlmRunner(
        model.lm,
        model.config.llm.sampling,
        slots=sizing.limits.max_running,
        blocks=sizing.blocks,
        longest=sizing.longest,
        dtype=model.dtype,
        fixed=sizing.chunking.fixed,
    )
    return Engine(llm, AudioRunner(model.flow, model.vocoder, sizing.lanes), sizing.limits, sizing.chunking)
