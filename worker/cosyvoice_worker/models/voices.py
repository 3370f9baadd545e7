"""Reads spk2info.pt: the voices that a model directory brings, in the three forms that are about.

1. preset (sft): `embedding`;
2. saved with add_zero_shot_spk: the official zero-shot input without the text (`prompt_text` holds token ids);
3. the cache of async_cosyvoice and the Triton runtime: `prompt_text`, `speech_token`, `speech_feat`, `embedding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cosyvoice_worker.models.tensors import TensorFileError, load_plain


@dataclass(frozen=True, slots=True)
class VoiceRecord:
    """One voice as the file has it; tensors on the CPU without a batch dimension."""

    name: str
    embedding: torch.Tensor
    """(192,) float32."""
    prompt_text: str
    prompt_text_ids: tuple[int, ...]
    """Token ids of the prompt text where the file keeps those instead of the text."""
    prompt_tokens: torch.Tensor
    """(P,) int64."""
    prompt_mel: torch.Tensor
    """(2P, 80) float32."""


def read_voices(path: Path, speaker: int = 192, mel: int = 80, speech_tokens: int = 6561) -> dict[str, VoiceRecord]:
    """Name -> voice, in the file's order. Raises TensorFileError naming the voice and the field at fault."""
    content = load_plain(path)
    if not isinstance(content, dict):
        raise TensorFileError(f"{path}: holds a {type(content).__name__}, not a table of voices")
    voices: dict[str, VoiceRecord] = {}
    for name, entry in content.items():
        if not isinstance(name, str) or not isinstance(entry, dict):
            raise TensorFileError(f"{path}: voice {name!r} is no table; save it with the official add_zero_shot_spk")
        voices[name] = _voice(_Entry(path, name, entry), speaker, mel, speech_tokens)
    return voices


class _Entry:
    def __init__(self, path: Path, name: str, values: Mapping[Any, Any]) -> None:
        self.path = path
        self.name = name
        self.values = values

    def fail(self, what: str) -> TensorFileError:
        return TensorFileError(f"{self.path}: voice {self.name!r}: {what}; remove the voice or save it again")

    def tensor(self, *names: str) -> torch.Tensor | None:
        """The first of the named fields, or None; a batch dimension of one is removed."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, torch.Tensor):
                raise self.fail(f"{name} is a {type(value).__name__}, not a tensor")
            return value[0] if value.dim() > 1 and value.shape[0] == 1 else value
        return None


def _voice(entry: _Entry, speaker: int, mel: int, speech_tokens: int) -> VoiceRecord:
    embedding = entry.tensor("embedding", "flow_embedding", "llm_embedding")
    if embedding is None or embedding.shape != (speaker,) or not bool(torch.isfinite(embedding.float()).all()):
        raise entry.fail(f"embedding is not {speaker} finite numbers")
    tokens = entry.tensor("flow_prompt_speech_token", "speech_token")
    features = entry.tensor("prompt_speech_feat", "speech_feat")
    tokens = torch.zeros(0, dtype=torch.int64) if tokens is None else tokens.to(torch.int64)
    features = torch.zeros(0, mel) if features is None else features.float()
    if tokens.dim() != 1 or (tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < speech_tokens):
        raise entry.fail(f"speech tokens are not a line of ids below {speech_tokens}")
    if features.shape != (2 * tokens.numel(), mel) or not bool(torch.isfinite(features).all()):
        raise entry.fail(f"{tokens.numel()} speech tokens need ({2 * tokens.numel()}, {mel}) finite mel values")
    text = entry.values.get("prompt_text")
    ids = entry.tensor("prompt_text_token") if isinstance(text, str) else entry.tensor("prompt_text")
    return VoiceRecord(
        name=entry.name,
        embedding=embedding.float(),
        prompt_text=text if isinstance(text, str) else "",
        prompt_text_ids=() if ids is None else tuple(int(i) for i in ids.flatten()),
        prompt_tokens=tokens,
        prompt_mel=features,
    )
