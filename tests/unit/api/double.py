"""Stands in for the engine at exactly SpeechService's interface; streams are the real ones."""

import asyncio
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import torch

from cosyvoice_worker.engine.requests import Reading, Refused, SynthesisFailed, SynthesisRequest, Usage, Voice
from cosyvoice_worker.engine.voices import VoiceBook
from cosyvoice_worker.lifecycle import Engine
from cosyvoice_worker.scheduling.stream import SpeechStream


def voice(name: str) -> Voice:
    return Voice(name, torch.zeros(192))


@dataclass
class SpeechDouble:
    pieces: int = 5
    piece_seconds: float = 0.2
    pause: float = 0.0
    """Seconds before each piece."""
    fail_after: int | None = None
    """Pieces after which the request fails."""
    refusal: Refused | None = None
    alive: bool = True
    sample_rate: int = 24000
    model_name: str = "Demo"
    may_start: threading.Event = field(default_factory=threading.Event)
    requests: list[SynthesisRequest] = field(default_factory=list)
    cancelled_at: list[float] = field(default_factory=list)
    running: int = 0
    draining: bool = False

    def reset(self) -> None:
        for name, default in vars(SpeechDouble()).items():
            setattr(self, name, default)

    def __post_init__(self) -> None:
        self.voices = {name: voice(name) for name in ("anna", "Ben")}
        self.may_start.set()

    def engine(self) -> Engine:
        return Engine(self, VoiceBook(self.voices.values()), None)

    async def start(self) -> None:
        await asyncio.to_thread(self.may_start.wait, 20)

    def submit(self, request: SynthesisRequest) -> SpeechStream:
        if self.refusal or self.draining:
            raise self.refusal or Refused("Draining", 5)
        self.requests.append(request)
        speaking: asyncio.Task[None]

        def cancel() -> None:
            if not speaking.done():
                self.cancelled_at.append(time.monotonic())
                speaking.cancel()

        stream = SpeechStream(cancel)
        speaking = asyncio.create_task(self._speak(stream))
        return stream

    async def _speak(self, stream: SpeechStream) -> None:
        self.running += 1
        try:
            time_axis = np.arange(int(self.piece_seconds * self.sample_rate)) / self.sample_rate
            for index in range(self.pieces):
                await asyncio.sleep(self.pause)
                if index == self.fail_after:
                    stream.put(SynthesisFailed("the device went away"))
                    return
                stream.put((0.4 * np.sin(2 * np.pi * 300 * time_axis)).astype(np.float32))
            stream.put(Usage(text_tokens=3, speech_tokens=25, audio_seconds=self.pieces * self.piece_seconds))
        finally:
            self.running -= 1

    def reading(self) -> Reading:
        return Reading(self.running * 0.5, 2.0, False, self.running, 0, 1, 4, self.draining)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109
        self.draining = True
        ends = time.monotonic() + timeout
        while self.running and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return not self.running

    async def stop(self) -> None:
        self.draining = True
