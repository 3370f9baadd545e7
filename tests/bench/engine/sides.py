"""The two sides, each asked the same way: so many texts at once, when was the first audio there, when the last."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosyvoice_worker.engine.requests import SynthesisRequest, Voice
from cosyvoice_worker.scheduling.service import SpeechService

SAMPLE_RATE = 24000


@dataclass(frozen=True, slots=True)
class Spoken:
    """One text; seconds since all arrived."""

    first: float
    end: float
    samples: int
    ran_dry: bool = False
    """A listener who starts at the first audio would have had to wait later."""


def audio_seconds(spoken: list[Spoken]) -> float:
    return sum(s.samples for s in spoken) / SAMPLE_RATE


def throughput(spoken: list[Spoken]) -> float:
    return audio_seconds(spoken) / max(s.end for s in spoken)


class Peer:
    """The official code in a process of its own (tests/bench/engine/peer.py)."""

    def __init__(self, python: Path, model: Path, size: dict[str, int], voice: Any, threads: int) -> None:
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name("peer.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self._ask({"model_dir": str(model), "size": size, "voice": voice, "threads": threads})

    def speak(self, texts: list[list[int]], *, workers: int, threads: int, streaming: bool) -> list[Spoken]:
        """Speak `texts` (token ids), which arrive at once, in `workers` Python threads of `threads` torch threads."""
        order = {"texts": texts, "workers": workers, "threads": threads, "streaming": streaming}
        return [Spoken(**result) for result in self._ask(order)]

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the official code's process ended; its own message stands above")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


async def speak(service: SpeechService, texts: list[str], voice: Voice, *, streaming: bool) -> list[Spoken]:
    """Submit all `texts` at once and listen to all of them."""
    began = time.monotonic()

    async def one(index: int, text: str) -> Spoken:
        request = SynthesisRequest(f"bench-{index}", text, voice, seed=index, streaming=streaming)
        first, samples, dry = 0.0, 0, False
        async for pcm in await service.submit(request):
            now = time.monotonic() - began
            first = first or now
            dry = dry or now > first + samples / SAMPLE_RATE
            samples += len(pcm)
        return Spoken(first, time.monotonic() - began, samples, dry)

    return list(await asyncio.gather(*(one(index, text) for index, text in enumerate(texts))))
