"""What the language model reads before the sentence: the voice's own words, or how to speak."""

from __future__ import annotations

from dataclasses import dataclass, field

from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.models.tokenizer import END_OF_PROMPT, TextTokenizer

V3_SYSTEM = "You are a helpful assistant."
"""Fun-CosyVoice3 was trained with this before `<|endofprompt|>` (official example.py)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The same for every sentence of a request."""

    text_ids: list[int] = field(default_factory=list)
    """Before the sentence's own text."""
    speech_ids: list[int] = field(default_factory=list)
    """Speech that the model continues; empty unless its words are in `text_ids`."""


def prompt_for(voice: Voice, instruct: str, tokenizer: TextTokenizer, version: int) -> Prompt:
    """Zero-shot continues the recording; instruct, cross-lingual and preset voices take only its sound (flow)."""
    system = V3_SYSTEM if version == 3 else ""
    if instruct:
        return Prompt(tokenizer.encode(f"{system} {instruct}{END_OF_PROMPT}".lstrip()))
    if voice.prompt_text:
        words = voice.prompt_text
        if version == 3 and END_OF_PROMPT not in words:
            words = f"{system}{END_OF_PROMPT}{words}"
        return Prompt(tokenizer.encode(words), voice.prompt_tokens.tolist())
    return Prompt(tokenizer.encode(f"{system}{END_OF_PROMPT}")) if system else Prompt()
