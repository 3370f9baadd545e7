"""Makes a `Job` of a request: normalised, split, in tokens. Pure, so any thread may do it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from cosyvoice_worker.engine.frontend.prompt import prompt_for
from cosyvoice_worker.engine.frontend.text import sentences
from cosyvoice_worker.engine.requests import SynthesisRequest, Unspeakable
from cosyvoice_worker.engine.sequences import Job, Sequence
from cosyvoice_worker.models.tokenizer import TextTokenizer

MIN_RATIO, MAX_RATIO = 2, 20
"""Speech tokens per text token, at least and at most (official min_token_text_ratio, max_token_text_ratio)."""
_MARKS = 2
"""Positions of sos and task in the LLM's input."""


@dataclass(frozen=True, slots=True)
class Frontend:
    tokenizer: TextTokenizer
    version: int
    max_positions: int
    """What one sentence may hold in the LLM's cache."""
    max_speech_tokens: int
    """Speech tokens, the recording's included, that the flow can take at once."""

    def job(self, request: SynthesisRequest, now: float) -> Job:
        """Raises `Unspeakable` where nothing can be said or a sentence does not fit."""
        job = self.open_job(request, now)
        job.extend(self.sentences(job, request.text), now)
        job.open = False
        if not job.sentences:
            raise Unspeakable("input: nothing in this text can be spoken; send words")
        return job

    def open_job(self, request: SynthesisRequest, now: float) -> Job:
        """A job whose text is still to come; that of `request` is not looked at."""
        prompt = prompt_for(request.voice, request.instruct, self.tokenizer, self.version)
        seed = secrets.randbits(63) if request.seed is None else request.seed
        return Job(request=request, seed=seed, arrived=now, prompt=prompt, open=True)

    def sentences(self, job: Job, text: str) -> list[Sequence]:
        """What `text` adds to the job: its sentences, none where nothing in it can be said.

        Raises `Unspeakable` where one does not fit.
        """
        request, prompt = job.request, job.prompt
        made: list[Sequence] = []
        for sentence in sentences(text, request.language, lambda part: len(self.tokenizer.encode(part))):
            text_ids = self.tokenizer.encode(sentence)
            length = _MARKS + len(prompt.text_ids) + len(text_ids) + len(prompt.speech_ids)
            room = min(self.max_positions - length, self.max_speech_tokens - len(request.voice.prompt_tokens))
            if room < MIN_RATIO * len(text_ids):
                raise Unspeakable(
                    f"input: a sentence of {len(text_ids)} text tokens with a voice prompt of "
                    f"{len(prompt.text_ids)} text and {len(prompt.speech_ids)} speech tokens does not fit the worker's "
                    f"{self.max_positions} positions; shorten the sentence or the voice's recording"
                )
            made.append(
                Sequence(
                    job=job,
                    index=0,
                    text_ids=text_ids,
                    prompt_length=length,
                    min_tokens=MIN_RATIO * len(text_ids),
                    max_tokens=min(MAX_RATIO * len(text_ids), room),
                )
            )
        return made
