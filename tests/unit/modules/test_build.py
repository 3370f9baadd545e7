"""Networks are made of exactly the weights that the configuration asks for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from cosyvoice_worker.engine.modules import build
from cosyvoice_worker.models.directory import ModelDirectoryError, open_directory
from cosyvoice_worker.models.tensors import load_state_dict

DATA = Path(__file__).parents[2] / "golden" / "data"
CPU = torch.device("cpu")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(DATA / "tiny-cosyvoice2", tmp_path / "model")


def change(file: Path, **tensors: torch.Tensor | None) -> None:
    """Adds or replaces weights; None removes one. Dots are written as double underscores."""
    state = load_state_dict(file)
    for name, tensor in tensors.items():
        if tensor is None:
            del state[name.replace("__", ".")]
        else:
            state[name.replace("__", ".")] = tensor
    torch.save(state, file)


def test_a_missing_weight_is_named(model: Path) -> None:
    change(model / "flow.pt", encoder_proj__bias=None)
    with pytest.raises(ModelDirectoryError, match=r"flow\.pt lacks encoder_proj\.bias"):
        build.load_flow(open_directory(model), CPU, torch.float32)


def test_half_of_a_fused_pair_is_named(model: Path) -> None:
    change(model / "llm.pt", llm__model__model__layers__0__mlp__up_proj__weight=None)
    with pytest.raises(ModelDirectoryError, match=r"gate_up_proj\.weight.*unknown layers\.0\.mlp\.gate_proj"):
        build.load_lm(open_directory(model), CPU, torch.float32)


def test_an_unknown_weight_is_named(model: Path) -> None:
    change(model / "hift.pt", extra__weight=torch.ones(1))
    with pytest.raises(ModelDirectoryError, match=r"hift\.pt has unknown extra\.weight"):
        build.load_vocoder(open_directory(model), CPU)


def test_a_weight_of_another_shape_is_named(model: Path) -> None:
    change(model / "flow.pt", encoder_proj__bias=torch.ones(81))
    with pytest.raises(ModelDirectoryError, match=r"encoder_proj\.bias is \(81,\), the configuration says \(80,\)"):
        build.load_flow(open_directory(model), CPU, torch.float32)


def test_old_names_of_weight_norm_and_a_generator_prefix_give_the_same_vocoder(model: Path) -> None:
    expected = build.load_vocoder(open_directory(model), CPU).state_dict()
    file = model / "hift.pt"
    state = {
        "generator."
        + name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in load_state_dict(file).items()
    }
    torch.save(state, file)
    read = build.load_vocoder(open_directory(model), CPU).state_dict()
    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())


def test_voices_of_the_directory_come_with_it() -> None:
    loaded = build.load(open_directory(DATA / "tiny-cosyvoice2"), CPU)
    assert list(loaded.voices) == ["tiny_spk"]
    assert loaded.voices["tiny_spk"].embedding.shape == (192,)
    assert not any(parameter.requires_grad for parameter in loaded.lm.parameters())
