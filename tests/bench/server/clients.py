"""Clients of all manners, and how each one's request ended: with all of its audio, with an honest error, or lost."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import httpx
import numpy as np
from numpy.typing import NDArray

from cosyvoice_worker.audio.recordings import UndecodableAudio, decode_recording

RATE = 24000
PATIENCE_SECONDS = 120.0
"""Who hears nothing new and no end for so long was forgotten."""
PADDING_SECONDS = 0.15
"""What a lossy codec may add or take at the ends."""
LIKENESS = 0.02
"""Of full scale, root mean square: streams are cut differently under load, which rounds differently; other speech would
differ by ten times as much."""
FORMATS = ("pcm", "pcm", "pcm", "wav", "flac", "mp3", "opus", "sse")

TEXTS = (
    "Good morning.",
    "The train is late again.",
    "Please leave a message after the tone.",
    "We will call you back as soon as somebody is free.",
    "It rained all night, and in the morning the garden was full of birds.",
    "Your order has left the house. It will be with you on Friday. Thank you for your patience.",
)

Manner = Literal["listens", "leaves", "reads slowly", "stops reading"]
Samples = NDArray[np.int16]


@dataclass(frozen=True)
class Wish:
    text: str
    format: str = "pcm"
    manner: Manner = "listens"
    leaves_after: float = 0.0

    @property
    def body(self) -> dict[str, object]:
        # On a CPU a seeded text is the same speech whoever else is served, so that each answer has its reference.
        fields = {"input": self.text, "voice": "default", "seed": 7}
        if self.format == "sse":
            return fields | {"response_format": "pcm", "stream_format": "sse"}
        return fields | {"response_format": self.format}


@dataclass(frozen=True)
class Ending:
    """`whole`, `error` (honest: a status, an event or a body that is broken off), `refused`, `left`, `lost`."""

    kind: Literal["whole", "error", "refused", "left", "lost"]
    accepted: bool
    first_audio: float | None
    why: str = ""


def some_wish(chance: random.Random) -> Wish:
    manner: Manner = chance.choices(["listens", "leaves", "reads slowly", "stops reading"], [14, 3, 2, 1])[0]
    audio_format = "pcm" if manner in ("reads slowly", "stops reading") else chance.choice(FORMATS)
    return Wish(chance.choice(TEXTS), audio_format, manner, chance.uniform(0.0, 3.0))


class Clients:
    def __init__(self, base: str, stall_seconds: float) -> None:
        self._base = base
        self._stall_seconds = stall_seconds
        small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]
        endless = httpx.Limits(max_connections=None)
        self._usual = httpx.AsyncClient(timeout=None, limits=endless)
        self._narrow = httpx.AsyncClient(
            timeout=None, transport=httpx.AsyncHTTPTransport(socket_options=small, limits=endless)
        )
        self.references: dict[str, Samples] = {}

    async def close(self) -> None:
        await self._usual.aclose()
        await self._narrow.aclose()

    async def learn(self) -> None:
        """What each text sounds like on an idle worker."""
        for text in TEXTS:
            answer = await self._usual.post(self._base + "/v1/audio/speech", json=Wish(text).body)
            answer.raise_for_status()
            self.references[text] = np.frombuffer(answer.content, "<i2")

    def seconds(self, text: str) -> float:
        return len(self.references[text]) / RATE

    async def speak(self, wish: Wish) -> Ending:
        began = time.perf_counter()
        accepted, first, received = False, None, bytearray()
        seconds = wish.leaves_after if wish.manner == "leaves" else PATIENCE_SECONDS
        client = self._narrow if wish.manner in ("reads slowly", "stops reading") else self._usual
        try:
            async with (
                asyncio.timeout(seconds),
                client.stream("POST", self._base + "/v1/audio/speech", json=wish.body) as answer,
            ):
                if answer.status_code != 200:
                    return not_taken(answer, await answer.aread())
                accepted = True
                async for piece in self._read(answer, wish.manner):
                    first = first or time.perf_counter() - began
                    received += piece
        except TimeoutError:
            if wish.manner == "leaves":
                return Ending("left", accepted, first)
            return Ending("lost", accepted, first, f"no end after {seconds:.0f} s")
        except httpx.HTTPError as error:
            # A body without its end mark: no client takes it for whole. Before the status it is no answer at all.
            return Ending("error" if accepted else "lost", accepted, first, repr(error))
        fault = self._fault(wish, bytes(received))
        if fault == "error event":
            return Ending("error", accepted, first, fault)
        return Ending("lost" if fault else "whole", accepted, first, fault)

    async def _read(self, answer: httpx.Response, manner: Manner) -> AsyncIterator[bytes]:
        pause = {"reads slowly": 0.1, "stops reading": 3 * self._stall_seconds}.get(manner, 0.0)
        async for piece in answer.aiter_raw():
            yield piece
            await asyncio.sleep(pause)
            pause = pause if manner == "reads slowly" else 0.0

    def _fault(self, wish: Wish, body: bytes) -> str:
        """What a body that came to its end lacks; empty where it is all of the text's audio."""
        expected = self.references[wish.text]
        if wish.format == "sse":
            events = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line]
            if events and events[-1]["type"] == "error":
                return "error event"
            if not events or events[-1]["type"] != "speech.audio.done":
                return "events without an end"
            body = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
        elif wish.format != "pcm":
            try:
                decoded = decode_recording(body, 60.0)
            except UndecodableAudio as error:
                return str(error)
            missing = len(decoded.pcm) / decoded.sample_rate - len(expected) / RATE
            return f"{missing:+.2f} s of audio" if abs(missing) > PADDING_SECONDS else ""
        samples = np.frombuffer(body, "<i2")
        if len(samples) != len(expected):
            return f"{len(samples) - len(expected):+d} samples"
        difference = float(np.sqrt(np.mean((samples / 32768.0 - expected / 32768.0) ** 2)))
        return f"other speech (differs by {difference:.3f})" if difference > LIKENESS else ""


def not_taken(answer: httpx.Response, body: bytes) -> Ending:
    """A refusal says when to come back, every error has OpenAI's form; anything else loses the request."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError):
        return Ending("lost", False, None, f"status {answer.status_code} in no known form")
    if answer.status_code in (429, 503):
        back = answer.headers.get("retry-after", "")
        return Ending("refused" if back.isdigit() else "lost", False, None, message)
    # The status waits for the first audio, so what was taken and failed before it ends here.
    return Ending("error" if answer.status_code == 500 else "lost", answer.status_code == 500, None, message)
