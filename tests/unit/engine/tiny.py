"""The tiny model of the golden recordings, as an engine that a test drives step by step on its own clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from cosyvoice_worker.engine.audio_runner import AudioRunner
from cosyvoice_worker.engine.engine import Audio, Engine, Event, Failed, Pcm
from cosyvoice_worker.engine.frontend.job import Frontend
from cosyvoice_worker.engine.llm_runner import LlmRunner
from cosyvoice_worker.engine.modules import build
from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.requests import SynthesisRequest, Voice
from cosyvoice_worker.engine.sequences import Job
from cosyvoice_worker.engine.sizing import size_for
from cosyvoice_worker.models.directory import open_directory

DATA = Path(__file__).parents[2] / "golden" / "data"
STEP_SECONDS = 0.01
"""What a step takes on the test's clock."""


def model(version: int = 2, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return _model(version, dtype)  # a cache takes model() and model(2) for two


@cache
def _model(version: int, dtype: torch.dtype) -> LoadedModel:
    torch.set_num_threads(1)
    return build.load(open_directory(DATA / f"tiny-cosyvoice{version}"), torch.device("cpu"), dtype)


def voice(version: int = 2, prompt: int = 0) -> Voice:
    """A preset voice, or one with a made-up recording of `prompt` tokens."""
    generator = torch.Generator().manual_seed(prompt)
    return Voice(
        name=f"v{prompt}",
        embedding=torch.randn(192, generator=torch.Generator().manual_seed(1)),
        prompt_text="hi there" if prompt else "",
        prompt_tokens=torch.randint(0, 6561, (prompt,), generator=generator),
        prompt_mel=torch.randn(2 * prompt, 80, generator=generator),
    )


def request(text: str = "Hi there.", *, seed: int = 0, prompt: int = 0, **changes: object) -> SynthesisRequest:
    return replace(SynthesisRequest("r", text, voice(prompt=prompt), seed=seed), **changes)  # type: ignore[arg-type]


@dataclass(eq=False)
class Told:
    """What came of one request."""

    job: Job
    pieces: list[Pcm] = field(default_factory=list)
    error: str = ""
    done: bool = False

    @property
    def pcm(self) -> Pcm:
        return np.concatenate([np.zeros(0, np.float32), *self.pieces])

    @property
    def tokens(self) -> list[list[int]]:
        return [s.tokens for s in self.job.sentences]


class Bench:
    """One engine and its clock."""

    def __init__(
        self,
        version: int = 2,
        *,
        slots: int = 4,
        blocks: int = 64,
        fixed: bool = False,
        lanes: int = 1,
        loaded: LoadedModel | None = None,
    ) -> None:
        loaded = loaded or model(version)
        sizing = size_for(loaded, max_running=slots, fixed=fixed)
        self.now = 0.0
        self.frontend = Frontend(
            loaded.tokenizer, version, max_positions=blocks * 32, max_speech_tokens=sizing.max_speech_tokens
        )
        llm = LlmRunner(
            loaded.lm,
            loaded.config.llm.sampling,
            slots=slots,
            blocks=blocks,
            longest=blocks * 32,
            dtype=loaded.dtype,
            fixed=fixed,
        )
        audio = AudioRunner(loaded.flow, loaded.vocoder, lanes)
        self.engine = Engine(llm, audio, sizing.limits, sizing.chunking, clock=lambda: self.now)
        self.told: dict[Job, Told] = {}

    def add(self, asked: SynthesisRequest) -> Told:
        job = self.frontend.job(asked, self.now)
        self.told[job] = Told(job)
        self.engine.add(job)
        return self.told[job]

    def add_sentences(self, texts: list[str]) -> Told:
        """One request of several short sentences (the frontend would join them)."""
        told = self.add(request(texts[0]))
        for index, text in enumerate(texts[1:], start=1):
            (sentence,) = self.frontend.job(request(text), self.now).sentences
            told.job.sentences.append(replace(sentence, job=told.job, index=index))
        return told

    def dictate(self) -> Told:
        """A request whose text comes by `extend` and ends with `close`."""
        job = self.frontend.open_job(request(), self.now)
        self.told[job] = Told(job)
        self.engine.add(job)
        return self.told[job]

    def extend(self, told: Told, text: str) -> None:
        told.job.extend(self.frontend.sentences(told.job, text), self.now)

    def close(self, told: Told) -> None:
        self._tell(self.engine.close(told.job))

    def step(self) -> None:
        self.now += STEP_SECONDS
        self._tell(self.engine.step())

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            told = self.told[event.job]
            assert not told.done, "nothing is told of a request that has ended"
            if isinstance(event, Audio):
                told.pieces.append(event.pcm)
            else:
                told.done = True
                told.error = event.reason if isinstance(event, Failed) else ""

    def finish(self, most: int = 5000) -> None:
        for _ in range(most):
            if not self.engine.jobs:
                return
            self.step()
        raise AssertionError(f"{len(self.engine.jobs)} jobs do not end")


@cache
def alone(text: str, seed: int, prompt: int, streaming: bool) -> Told:
    """What a request gives when nothing else runs."""
    bench = Bench()
    told = bench.add(request(text, seed=seed, prompt=prompt, streaming=streaming))
    bench.finish()
    assert told.done
    assert not told.error
    return told
