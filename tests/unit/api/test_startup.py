"""From settings to an engine that can speak, or to the one line that says why not."""

import shutil
from pathlib import Path

import pytest

from cosyvoice_worker.models.directory import ModelDirectoryError
from cosyvoice_worker.settings import Settings
from cosyvoice_worker.startup import load_engine, model_path
from tests.unit.api.conftest import ROOT, TINY

PROMPTS = ROOT / "models" / "prompts"


@pytest.fixture(scope="module")
def without_voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as the official ones are: no voice in it."""
    folder = tmp_path_factory.mktemp("models") / "Voiceless"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("spk2info.pt"))
    return folder


def settings(folder: Path, **said: object) -> Settings:
    return Settings(model_dir=folder, device="cpu", **said)


async def test_a_model_without_voices_speaks_in_that_of_the_images_recording(without_voices):
    engine = await load_engine(settings(without_voices, default_prompt_dir=PROMPTS))
    voice = engine.voices[0]
    assert voice.name == "default"
    assert voice.prompt_text == (PROMPTS / "default.txt").read_text().strip()
    assert len(voice.prompt_mel) == 2 * len(voice.prompt_tokens) > 200


async def test_without_that_recording_it_says_which_file_is_missing_and_the_mend(without_voices, tmp_path):
    with pytest.raises(ModelDirectoryError, match=r"brings no voice.*default\.wav; set COSYVOICE_DEFAULT_PROMPT_DIR"):
        await load_engine(settings(without_voices, default_prompt_dir=tmp_path))


@pytest.mark.parametrize("file", ["llm.pt", "flow.pt", "hift.pt", "campplus.onnx", "CosyVoice-BlankEN/vocab.json"])
async def test_a_file_that_is_missing_is_named(without_voices, file):
    (without_voices / file).rename(without_voices / "aside")
    try:
        with pytest.raises(ModelDirectoryError, match=file):
            await load_engine(settings(without_voices))
    finally:
        (without_voices / "aside").rename(without_voices / file)


def test_a_built_in_model_is_found_by_name_and_an_unknown_one_lists_those_there_are(tmp_path):
    for name in ("One", "Two"):
        (tmp_path / name).mkdir()
    said = {"builtin_models_dir": tmp_path, "device": "cpu"}
    assert model_path(Settings(model_builtin="One", **said)) == tmp_path / "One"
    with pytest.raises(ModelDirectoryError, match=r"COSYVOICE_MODEL_BUILTIN=Three: .* has One, Two"):
        model_path(Settings(model_builtin="Three", **said))


def test_the_served_name_is_the_one_given_or_the_directorys(tmp_path):
    assert settings(tmp_path / "CosyVoice2-0.5B").served_name == "CosyVoice2-0.5B"
    assert settings(tmp_path, model_name="mine").served_name == "mine"
    assert Settings(model_builtin="DemoEnglish", device="cpu").served_name == "DemoEnglish"


async def test_a_random_model_is_made_by_size_and_seed_and_an_unknown_size_is_named():
    engine = await load_engine(Settings(model_random="Tiny:3", device="cpu"))
    assert engine.voices[0].name == "random"
    with pytest.raises(ModelDirectoryError, match=r"COSYVOICE_MODEL_RANDOM=Huge:3: .* Tiny"):
        await load_engine(Settings(model_random="Huge:3", device="cpu"))
