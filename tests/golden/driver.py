"""Synthesis in a straight line, the way the official code goes about it, with this project's networks.

Only for comparison: the engine schedules, streams and joins differently on purpose (docs/deviations.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.modules.flow import Window
from cosyvoice_worker.engine.modules.qwen2 import DenseCache, SpeechLM
from cosyvoice_worker.engine.modules.vocoder import Noise, Vocoder

Choose = Callable[[int, Tensor, list[int]], int]
"""(step, logits (V,), tokens so far) -> token."""


@dataclass(frozen=True)
class LmRequest:
    text_ids: list[int]
    """Prompt text and text."""
    speech_ids: list[int]
    shortest: int
    longest: int
    logits: list[Tensor] = field(default_factory=list)
    """Filled with the logits (V,) of every step, before any ban."""


def requests_ids(model: LoadedModel, prompt_text: str, text: str, speech_ids: list[int], ratio: int = 2) -> LmRequest:
    """The official bounds: 2 and 20 speech tokens for each token of the text."""
    own = model.tokenizer.encode(text)
    return LmRequest(model.tokenizer.encode(prompt_text) + own, speech_ids, ratio * len(own), 20 * len(own))


def greedy(shortest: int, banned: int) -> Choose:
    """The likeliest token, `banned` left out below the minimum length. The official code bans only that one id, which
    in v3 is not even the one that ends a sentence."""

    def choose(step: int, logits: Tensor, tokens: list[int]) -> int:
        if step < shortest:
            logits = logits.clone()
            logits[banned] = -torch.inf
        return int(logits.argmax())

    return choose


def generate(lm: SpeechLM, requests: Sequence[LmRequest], choose: Sequence[Choose] | None = None) -> list[list[int]]:
    """Tokens of all requests, decoded as one batch that each leaves when it is done."""
    first_special = lm.config.speech_tokens
    chosen_by = choose or [greedy(request.shortest, first_special) for request in requests]
    prompts = [
        lm.prompt(torch.tensor(r.text_ids, dtype=torch.int64), torch.tensor(r.speech_ids, dtype=torch.int64))
        for r in requests
    ]
    cache = DenseCache(lm.layer_count, len(requests))
    lengths = [len(prompt) for prompt in prompts]
    rows = [index for index, length in enumerate(lengths) for _ in range(length)]
    positions = torch.cat([torch.arange(length) for length in lengths])
    hidden = lm(torch.cat(prompts), positions, cache.attend(rows))
    logits = lm.speech_logits(hidden[torch.tensor(lengths).cumsum(0) - 1])

    tokens: list[list[int]] = [[] for _ in requests]
    running = list(range(len(requests)))
    while running:
        still: list[int] = []
        for row, index in enumerate(running):
            requests[index].logits.append(logits[row])
            token = chosen_by[index](len(tokens[index]), logits[row], tokens[index])
            if token in lm.stop_ids:
                continue
            tokens[index].append(token)
            if len(tokens[index]) < requests[index].longest:
                still.append(index)
        running = still
        if running:
            last = torch.tensor([tokens[index][-1] for index in running])
            positions = torch.tensor([lengths[index] + len(tokens[index]) - 1 for index in running])
            logits = lm.speech_logits(lm(lm.embed_speech(last), positions, cache.attend(running)))
    return tokens


def generate_from_stream(
    model: LoadedModel, arriving: Sequence[int], prompt_ids: list[int], speech_ids: list[int]
) -> Iterator[int]:
    """Tokens for text that arrives token by token (bistream), greedy: text and speech take turns, `mix_ratio` at a
    time; a fill token asks for more text. Raises ValueError where the model stops in mid-text."""
    lm = model.lm
    text_count, speech_count = model.config.llm.mix_ratio
    marks = lm.prompt(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    pending = [marks[:1]]
    if model.config.version == 3:
        end = prompt_ids.index(model.tokenizer.end_of_prompt) + 1
        pending.append(lm.embed_text(torch.tensor(prompt_ids[:end])))
        prompt_ids = prompt_ids[end:]
    text, speech = list(prompt_ids), list(speech_ids)
    cache, position = DenseCache(lm.layer_count, 1), 0
    made: list[int] = []
    next_fill = (len(speech) // speech_count + 1) * speech_count - len(speech)

    def step(x: Tensor) -> Tensor:
        nonlocal position
        positions = torch.arange(position, position + len(x))
        hidden = lm(x, positions, cache.attend([0] * len(x)))
        position += len(x)
        return lm.speech_logits(hidden[-1:])[0]

    def take(ids: list[int], count: int) -> list[int]:
        taken = ids[:count]
        del ids[:count]
        return taken

    for arrived in arriving:
        text.append(arrived)
        while speech and len(text) >= text_count:
            pending.append(lm.embed_text(torch.tensor(take(text, text_count))))
            pending.append(lm.embed_speech(torch.tensor(take(speech, speech_count))))
        if speech:
            continue
        asked = bool(made) and made[-1] == lm.fill_id
        if asked or (not made and sum(map(len, pending)) == 1):
            if len(text) < text_count:
                continue
            # After a fill token nothing is pending but that token, which the official code does not feed back.
            pending = ([] if asked else pending) + [lm.embed_text(torch.tensor(take(text, text_count)))]
        while True:
            logits = step(torch.cat(pending))
            if next_fill != -1 and len(made) == next_fill:
                token = lm.fill_id
                next_fill += speech_count + 1
            else:
                logits[model.config.llm.speech_tokens] = -torch.inf
                token = int(logits.argmax())
            if token == lm.fill_id:
                next_fill = len(made) + speech_count + 1
            made.append(token)
            if token >= model.config.llm.speech_tokens:
                if token == lm.fill_id:
                    break
                raise ValueError(f"should not get token {token}")
            yield token
            pending = [lm.embed_speech(torch.tensor([token]))]
    pending += [lm.embed_text(torch.tensor(text, dtype=torch.int64)), marks[1:2]]
    while True:
        token = int(step(torch.cat(pending)).argmax())
        if token >= model.config.llm.speech_tokens:
            if token == lm.eos_id:
                return
            raise ValueError(f"should not get token {token}")
        yield token
        pending = [lm.embed_speech(torch.tensor([token]))]


V3_SILENT = frozenset({1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323})
"""Speech tokens of v3 that are silence or breath; the official code drops what exceeds five of them in a row."""


def without_long_silence(tokens: list[int], version: int) -> list[int]:
    kept: list[int] = []
    run = 0
    for token in tokens:
        run = run + 1 if version == 3 and token in V3_SILENT else 0
        if run <= 5:
            kept.append(token)
    return kept


@dataclass(frozen=True)
class FlowPrompt:
    tokens: Tensor
    mel: Tensor
    embedding: Tensor


def silence(first: int, count: int) -> Tensor:
    """No noise."""
    return torch.zeros(count, 9)


def speak(model: LoadedModel, tokens: Tensor, prompt: FlowPrompt, speed: float = 1.0, noise: Noise = silence) -> Tensor:
    """A whole sentence at once: (samples,)."""
    window = Window(tokens, prompt.tokens, prompt.mel, prompt.embedding, final=True, streaming=False)
    mel = model.flow([window])[0]
    if speed != 1.0:
        mel = F.interpolate(mel[None], size=int(mel.shape[1] / speed), mode="linear")[0]
    wave: Tensor = model.vocoder([mel], [noise])[0]
    return wave


def speak_in_chunks(model: LoadedModel, tokens: Tensor, prompt: FlowPrompt, hop: int = 25) -> list[Tensor]:
    """The official streaming: hops that double up to 100 tokens, the last window with full attention."""
    ahead, chunks, offset = model.config.flow.lookahead, list[Tensor](), 0
    joiner = CrossFade(model.vocoder) if model.config.version == 2 else Recompute(model.vocoder)
    pad = math.ceil(len(prompt.tokens) / hop) * hop - len(prompt.tokens)
    while True:
        this = hop + pad if offset == 0 else hop
        if len(tokens) - offset < this + ahead:
            break
        until = offset + this + ahead
        window = Window(tokens[:until], prompt.tokens, prompt.mel, prompt.embedding, final=False, streaming=True)
        chunks.append(joiner.join(model.flow([window])[0][:, offset * model.config.flow.ratio :], final=False))
        offset, hop = offset + this, min(100, 2 * hop)
    window = Window(tokens, prompt.tokens, prompt.mel, prompt.embedding, final=True, streaming=False)
    chunks.append(joiner.join(model.flow([window])[0][:, offset * model.config.flow.ratio :], final=True))
    return chunks


def source_of(vocoder: Vocoder, mel: Tensor, noise: Noise = silence) -> Tensor:
    """(1, 480 T) source of mel (mel, T), from the start of a stream."""
    f0 = vocoder.f0_predictor(mel[None], lambda x: x)
    samples = mel.shape[1] * vocoder.frame
    before = torch.zeros(1, vocoder.config.harmonics + 1, dtype=torch.float64)
    source: Tensor = vocoder.m_source(f0, before, torch.tensor([True]), noise(0, samples)[None])[0]
    return source


class CrossFade:
    """v2: eight mel frames and their source are kept from chunk to chunk, and that stretch of speech is cross-faded."""

    FRAMES = 8

    def __init__(self, vocoder: Vocoder) -> None:
        self.vocoder = vocoder
        self.held = self.FRAMES * vocoder.frame
        self.window = torch.from_numpy(np.hamming(2 * self.held)).to(torch.get_default_device())
        self.mel: Tensor | None = None
        self.source = torch.zeros(0)
        self.speech = torch.zeros(0)

    def join(self, mel: Tensor, final: bool) -> Tensor:
        mel = mel if self.mel is None else torch.cat([self.mel, mel], dim=1)
        source = source_of(self.vocoder, mel)
        source[0, : len(self.source)] = self.source
        speech = self.vocoder.decode(mel[None], source, [mel.shape[1]])[0]
        if self.mel is not None:
            rising, falling = self.window[: self.held], self.window[self.held :]
            # The product with a float64 window is rounded back to float32, as an assignment to a slice does.
            speech[: self.held] = speech[: self.held] * rising + self.speech * falling
        self.mel, self.source, self.speech = mel[:, -self.FRAMES :], source[0, -self.held :], speech[-self.held :]
        return speech if final else speech[: -self.held]


class Recompute:
    """v3: everything is spoken again from the start, and what is new of it given out."""

    HELD = 8
    """Frames that a chunk which is not the last leaves out."""

    def __init__(self, vocoder: Vocoder) -> None:
        self.vocoder = vocoder
        self.mel = torch.zeros(vocoder.config.mel, 0)
        self.given = 0

    def join(self, mel: Tensor, final: bool) -> Tensor:
        self.mel = torch.cat([self.mel, mel], dim=1)
        speech: Tensor = self.vocoder([self.mel], [silence])[0]
        speech = speech if final else speech[: -self.HELD * self.vocoder.frame]
        new, self.given = speech[self.given :], len(speech)
        return new
