"""Speaks to a CosyVoice service as a user would: with the official `openai` client; for the demo and the kind tests."""

from __future__ import annotations

import io
import itertools
import struct
import threading
import time
import wave
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import openai

MODEL = "DemoEnglish"
VOICE = "default"
_HEADER_BYTES = 44


@dataclass(frozen=True)
class Speech:
    """One answer. samples: 16-bit mono PCM, little-endian. Times in seconds."""

    samples: bytes
    sample_rate: int
    first_audio: float
    total: float

    @property
    def duration(self) -> float:
        """Seconds of audio."""
        return len(self.samples) / 2 / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds that one second of audio took."""
        return self.total / self.duration

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(self.sample_rate)
            out.writeframes(self.samples)


def client(base_url: str) -> openai.OpenAI:
    """An OpenAI client for the service at `base_url` (without /v1); it does not retry: every refusal is seen."""
    return openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0, timeout=180)


def speak(api: openai.OpenAI, text: str, *, model: str = MODEL, voice: str = VOICE, seed: int | None = None) -> Speech:
    """Ask for `text` as WAV and read it as it comes; with a seed the same text sounds the same every time.

    Raises openai.APIStatusError when the service refuses, ValueError when what came is no whole WAV, and what the HTTP
    library raises when the stream breaks.
    """
    started = time.monotonic()
    first_audio: float | None = None
    received = io.BytesIO()
    with api.audio.speech.with_streaming_response.create(
        model=model,
        voice=voice,
        input=text,
        response_format="wav",
        extra_body=None if seed is None else {"seed": seed},
    ) as response:
        for piece in response.iter_bytes():
            received.write(piece)
            if first_audio is None and received.tell() > _HEADER_BYTES:
                first_audio = time.monotonic() - started
    sample_rate, samples = _parse(received.getvalue())
    if first_audio is None or not samples:
        raise ValueError(f"no audio came for {text!r}")
    return Speech(samples, sample_rate, first_audio, time.monotonic() - started)


def _parse(content: bytes) -> tuple[int, bytes]:
    """Return sample rate and samples of a streamed WAV, whose header cannot know the length."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise ValueError(f"not a WAV: it begins with {content[:12]!r}")
    offset, sample_rate = 12, 0
    while offset + 8 <= len(content):
        name, length = content[offset : offset + 4], struct.unpack("<I", content[offset + 4 : offset + 8])[0]
        offset += 8
        if name == b"fmt ":
            encoding, channels, sample_rate, _, _, bits = struct.unpack("<HHIIHH", content[offset : offset + 16])
            if (encoding, channels, bits) != (1, 1, 16):
                raise ValueError(f"not 16-bit mono PCM: {encoding=} {channels=} {bits=}")
        elif name == b"data":
            samples = content[offset:]
            if len(samples) % 2:
                raise ValueError("the audio ends within a sample")
            return sample_rate, samples
        offset += length + length % 2
    raise ValueError("the WAV has no data")


@dataclass
class Load:
    """Clients that ask for one sentence after the other until they are told to stop.

    listening: a client asks again when what it got would have been played, which makes it one stream; without, it asks
    at once, and a few of them saturate any worker.
    finished: requests whose audio came whole; refused: answers 429 or 503, which cost nothing and were tried again;
    lost: everything else, with what happened.
    """

    base_url: str
    sentences: Sequence[str]
    clients: int
    listening: bool = False
    finished: int = 0
    audio_seconds: float = 0.0
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._threads = [
            threading.Thread(target=self._run, args=(first,), daemon=True) for first in range(self.clients)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ask for nothing more and wait until what was asked for has come."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __str__(self) -> str:
        return (
            f"{self.finished} sentences ({self.audio_seconds:.0f} s of audio) finished, "
            f"{self.refused} refused for now, {len(self.lost)} lost"
        )

    def _run(self, first: int) -> None:
        api = client(self.base_url)
        start = first * len(self.sentences) // self.clients
        for text in itertools.islice(itertools.cycle(self.sentences), start, None):
            if self._stop.is_set():
                return
            asked = time.monotonic()
            try:
                speech = speak(api, text)
            except openai.APIStatusError as error:
                if error.status_code not in (429, 503):
                    self._count_lost(text, asked, error)
                    continue
                with self._lock:
                    self.refused += 1
                self._stop.wait(float(error.response.headers.get("retry-after", 1)))
            except Exception as error:  # whatever it was, the audio did not come
                self._count_lost(text, asked, error)
            else:
                with self._lock:
                    self.finished += 1
                    self.audio_seconds += speech.duration
                if self.listening:
                    self._stop.wait(speech.duration - speech.total)

    def _count_lost(self, text: str, asked: float, error: Exception) -> None:
        now = time.monotonic()
        with self._lock:
            self.lost.append(f"{time.strftime('%H:%M:%S')}: {text!r} after {now - asked:.0f} s: {error!r}")
        self._stop.wait(1)
