"""What both sides speak: random models whose sentences never end by themselves, texts of known length, one voice.

Each side stops at the official limit of twenty speech tokens per text token, so that both make the same audio.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from cosyvoice_worker.engine import random_model
from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.random_model import SIZES
from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.scheduling.service import Options, SpeechService

LOAD = ("Yes.", "Good.", "Hello.")
"""80, 100 and 120 speech tokens (a text token is a byte here): 4 s of audio on average."""
SHORT = "I."
"""40 speech tokens."""
PROMPT_TOKENS = 42
PROMPT_TEXT = "As I said."
NEVER = -1e4
"""Bias of what ends a sentence."""
PATIENT_SECONDS = 600.0
"""Nobody is refused: how long all take is measured, however slow the machine."""


def texts(count: int) -> list[str]:
    return [LOAD[index % len(LOAD)] for index in range(count)]


def write_model(path: Path, size: str) -> Path:
    directory = random_model.write(path, size, 0)
    state = torch.load(directory.llm, weights_only=True)
    ends = len(state["llm_decoder.bias"]) - directory.config.flow.vocab
    state["llm_decoder.bias"][-ends:] = NEVER
    torch.save(state, directory.llm)
    return path


async def started(model: LoadedModel, name: str) -> SpeechService:
    """A service whose warm-up ended its sentences as early as it may: twenty tokens per byte would take minutes."""
    service = SpeechService(model, Options(model_name=name, queue_seconds=PATIENT_SECONDS))
    ends = model.lm.llm_decoder.bias[model.lm.stop_ids.start :]
    ends.fill_(-NEVER)
    await service.start(voice())
    ends.fill_(NEVER)
    return service


def voice() -> Voice:
    """A voice of a recording of 1.7 s."""
    generator = torch.Generator().manual_seed(0)
    return Voice(
        "bench",
        embedding=torch.randn(192, generator=generator),
        prompt_text=PROMPT_TEXT,
        prompt_tokens=torch.randint(0, 6561, (PROMPT_TOKENS,), generator=generator),
        prompt_mel=torch.randn(2 * PROMPT_TOKENS, 80, generator=generator),
    )


def for_peer(voice: Voice, prompt_ids: list[int]) -> dict[str, tuple[object, str]]:
    """The voice as arguments of the official `tts`: name -> (values, dtype)."""
    speech = [voice.prompt_tokens.tolist()]
    return {
        "prompt_text": ([prompt_ids], "int32"),
        "llm_prompt_speech_token": (speech, "int32"),
        "flow_prompt_speech_token": (speech, "int32"),
        "prompt_speech_feat": ([voice.prompt_mel.tolist()], "float32"),
        "llm_embedding": ([voice.embedding.tolist()], "float32"),
        "flow_embedding": ([voice.embedding.tolist()], "float32"),
    }


def dimensions(size: str) -> dict[str, int]:
    return asdict(SIZES[size])
