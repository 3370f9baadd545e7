"""Random models are complete directories in the official format, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cosyvoice_worker.engine import random_model
from cosyvoice_worker.engine.modules import build
from cosyvoice_worker.engine.modules.flow import Window
from cosyvoice_worker.models.directory import ModelDirectoryError, Version
from cosyvoice_worker.models.tensors import load_state_dict

CPU = torch.device("cpu")


@pytest.mark.parametrize("version", [2, 3])
@torch.inference_mode()
def test_a_random_model_loads_and_gives_sound(tmp_path: Path, version: Version) -> None:
    model = build.load(random_model.write(tmp_path, "Tiny", 0, version), CPU)
    voice = model.voices["random"]
    tokens = torch.randint(0, 6561, (20,), generator=torch.Generator().manual_seed(0))
    mel = model.flow([Window(tokens, voice.prompt_tokens, voice.prompt_mel, voice.embedding, True, False)])[0]
    wave = model.vocoder([mel], [lambda first, count: torch.zeros(count, 9)])[0]
    assert wave.shape == (20 * 960,)
    assert 0.001 < float(wave.std()) < 0.9
    assert len(model.recordings.speech_tokens(torch.randn(16000))) == 25
    assert model.tokenizer.encode("é<|endofprompt|>")[-1] == model.tokenizer.end_of_prompt


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    weights = [
        load_state_dict(random_model.write(tmp_path / str(index), "Tiny", seed).flow)
        for index, seed in enumerate((1, 1, 2))
    ]
    name = "encoder_proj.weight"
    assert torch.equal(weights[0][name], weights[1][name])
    assert not torch.equal(weights[0][name], weights[2][name])


def test_an_unknown_size_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ModelDirectoryError, match="Tiny, Medium"):
        random_model.write(tmp_path, "Huge", 0)
