"""spk2info.pt is read in its three forms; a voice that does not fit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cosyvoice_worker.models.tensors import TensorFileError
from cosyvoice_worker.models.voices import VoiceRecord, read_voices

EMBEDDING = torch.arange(192.0)[None]
TOKENS = torch.tensor([[1, 2, 3]], dtype=torch.int32)
MEL = torch.ones(1, 6, 80)


def read(tmp_path: Path, voice: Any) -> VoiceRecord:
    torch.save({"v": voice}, tmp_path / "spk2info.pt")
    return read_voices(tmp_path / "spk2info.pt")["v"]


def test_a_preset_voice_has_only_its_embedding(tmp_path: Path) -> None:
    voice = read(tmp_path, {"embedding": EMBEDDING.half()})
    assert torch.equal(voice.embedding, EMBEDDING[0])
    assert (voice.prompt_tokens.shape, voice.prompt_mel.shape) == ((0,), (0, 80))


def test_a_saved_voice_keeps_its_words_as_token_ids(tmp_path: Path) -> None:
    saved = {
        "prompt_text": torch.tensor([[5, 6]], dtype=torch.int32),
        "prompt_text_len": torch.tensor([2]),
        "llm_prompt_speech_token": TOKENS,
        "flow_prompt_speech_token": TOKENS,
        "prompt_speech_feat": MEL,
        "llm_embedding": EMBEDDING,
        "flow_embedding": EMBEDDING,
    }
    voice = read(tmp_path, saved)
    assert (voice.prompt_text, voice.prompt_text_ids) == ("", (5, 6))
    assert voice.prompt_tokens.tolist() == [1, 2, 3]
    assert voice.prompt_mel.shape == (6, 80)


def test_a_cached_voice_keeps_its_words_as_text(tmp_path: Path) -> None:
    cached = {
        "name": "v",
        "spk_id": "v",
        "prompt_text": "hi",
        "prompt_text_token": torch.tensor([[5, 6]], dtype=torch.int32),
        "speech_feat": MEL,
        "speech_token": TOKENS,
        "embedding": EMBEDDING,
    }
    voice = read(tmp_path, cached)
    assert (voice.prompt_text, voice.prompt_tokens.tolist()) == ("hi", [1, 2, 3])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"embedding": EMBEDDING[:, :5]}, "embedding"),
        ({"embedding": EMBEDDING * float("nan")}, "embedding"),
        ({"embedding": "x"}, "embedding is a str"),
        ({"speech_token": TOKENS + 6560}, "ids below 6561"),
        ({"speech_token": -TOKENS}, "ids below 6561"),
        ({"speech_feat": MEL[:, :5]}, r"3 speech tokens need \(6, 80\)"),
    ],
)
def test_a_voice_that_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TensorFileError, match=f"voice 'v'.*{complaint}"):
        read(tmp_path, {"embedding": EMBEDDING, "speech_token": TOKENS, "speech_feat": MEL, **changes})
