"""A model directory is read as data; what is wrong with it is named at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cosyvoice_worker.models import hyperyaml
from cosyvoice_worker.models.directory import ModelDirectoryError, open_directory

DATA = Path(__file__).parents[2] / "golden" / "data"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the tiny CosyVoice2 directory."""
    return shutil.copytree(DATA / "tiny-cosyvoice2", tmp_path / "model")


def change(model: Path, old: str, new: str) -> None:
    file = model / "cosyvoice2.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_both_models_are_told_apart_and_their_shapes_read() -> None:
    two, three = (open_directory(DATA / f"tiny-cosyvoice{version}").config for version in (2, 3))
    assert (two.version, three.version) == (2, 3)
    assert two.flow.unet is not None
    assert three.flow.dit is not None
    assert (two.mel.fmax, three.mel.fmax) == (8000, None)
    assert two.llm.sampling.top_k == 25
    assert two.flow.chunk == 25
    assert three.vocoder.lookahead == 4


def test_every_missing_file_is_named(model: Path) -> None:
    for name in ("flow.pt", "campplus.onnx", "CosyVoice-BlankEN/merges.txt"):
        (model / name).unlink()
    with pytest.raises(ModelDirectoryError, match=r"flow\.pt, CosyVoice-BlankEN/merges\.txt, campplus\.onnx; copy"):
        open_directory(model)


def test_voices_are_optional(model: Path) -> None:
    (model / "spk2info.pt").unlink()
    assert open_directory(model).voices is None


def test_no_directory_and_a_directory_of_something_else_are_told(tmp_path: Path) -> None:
    with pytest.raises(ModelDirectoryError, match="does not exist"):
        open_directory(tmp_path / "nowhere")
    with pytest.raises(ModelDirectoryError, match=r"neither cosyvoice2\.yaml nor cosyvoice3\.yaml"):
        open_directory(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("cosyvoice.llm.llm.Qwen2LM", "os.system", r"llm is os\.system, supported is Qwen2LM"),
        ("t_scheduler: 'cosine'", "t_scheduler: 'linear'", r"t_scheduler is 'linear', supported is 'cosine'"),
        ("token_frame_rate: 25", "token_frame_rate: fast", r"token_frame_rate is 'fast', not a number"),
        ("    nb_harmonics: 8\n", "", r"hift\.nb_harmonics is missing"),
        ("chunk_size: 25", "chunk_size: 2.5", r"chunk_size is 2\.5, not a whole number"),
        ("channels: [32]", "channels: [32, 64]", "supported is one entry"),
        ("sample_rate: 24000", "sample_rate: !ref <nothing>", "there is no such key"),
    ],
)
def test_a_configuration_that_is_not_supported_names_the_key_and_the_value(
    model: Path, old: str, new: str, complaint: str
) -> None:
    change(model, old, new)
    with pytest.raises(ModelDirectoryError, match=complaint):
        open_directory(model)


def read(tmp_path: Path, text: str) -> dict[str, object]:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    return hyperyaml.read(file)


def test_tags_become_inert_nodes(tmp_path: Path) -> None:
    node = read(tmp_path, f"a: !apply:os.system ['touch {tmp_path}/called']\n")["a"]
    assert node == hyperyaml.Tagged("os.system", [f"touch {tmp_path}/called"])
    assert not (tmp_path / "called").exists()


def test_references_are_resolved_with_arithmetic(tmp_path: Path) -> None:
    assert read(tmp_path, "a: 25\nb: 2\nc: !ref <a> * <b>\nd: [!ref <c>, !ref <a> - 5]\n")["d"] == [50, 20]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("a: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("a: !ref <a>\n", "refers to itself"),
        ("a: !ref <b>\nb: !ref <a>\n", "refers to itself"),
        ("a: !ref __import__('os')\n", "only <names>, numbers"),
        ("a: 1\nb: !ref <a> / 0\n", "divides by zero"),
        ("a: 1\nb: !ref <a> <a>\n", "one operator"),
        ("- 1\n", "not a mapping"),
        ("a: [1\n", "x.yaml"),
    ],
)
def test_yaml_beyond_the_subset_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(hyperyaml.YamlError, match=complaint):
        read(tmp_path, text)


def test_references_that_unfold_into_millions_are_refused(tmp_path: Path) -> None:
    levels = [f"a{i}: [!ref <a{i + 1}>, !ref <a{i + 1}>]" for i in range(40)]
    with pytest.raises(hyperyaml.YamlError, match="unfold to more than 100000 values"):
        read(tmp_path, "\n".join([*levels, "a40: 1"]))


def test_a_chain_of_references_that_is_too_long_is_refused(tmp_path: Path) -> None:
    levels = [f"a{i}: !ref <a{i + 1}>" for i in range(5000)]
    with pytest.raises(hyperyaml.YamlError, match="nested too deeply"):
        read(tmp_path, "\n".join([*levels, "a5000: 1"]))
