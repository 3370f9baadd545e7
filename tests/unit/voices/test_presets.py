"""The service's voices follow their mounted files."""

import os
from pathlib import Path

import pytest

from cosyvoice_worker.engine.recorded_voices import RecordedVoices
from cosyvoice_worker.live_files import Reloads
from cosyvoice_worker.voices.presets import PresetVoices
from tests.unit.voices.conftest import recording, voices_json


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "anna.wav").write_bytes(recording())
    (tmp_path / "bert.wav").write_bytes(recording(pitch=120))
    return tmp_path / "voices.json"


@pytest.fixture
def presets(file: Path, recorded: RecordedVoices, reloads: Reloads) -> PresetVoices:
    return PresetVoices(file, recorded, reloads)


def anna(file: Path) -> tuple[str, str, Path]:
    return "anna", "What Anna says.", file.parent / "anna.wav"


def bert(file: Path) -> tuple[str, str, Path]:
    return "bert", "", file.parent / "bert.wav"


def counts(reloads: Reloads) -> dict[tuple[str, str], int]:
    return {(what, outcome): count for what, outcome, count in reloads.counts()}


def test_a_missing_file_is_one_without_voices(presets, reloads):
    presets.refresh()
    assert (presets.voices, presets.aliases, counts(reloads)) == ((), {}, {})


def test_voices_come_in_the_files_order_with_their_words(file, presets):
    file.write_text(voices_json(bert(file), anna(file), alloy="anna"))
    presets.refresh()
    first, second = presets.voices
    assert (first.name, first.voice.prompt_text) == ("bert", "")
    assert (second.name, second.voice.prompt_text) == ("anna", "What Anna says.")
    assert len(second.voice.prompt_tokens) > 10
    assert presets.aliases == {"alloy": "anna"}


def test_kubernetes_swap_of_the_mounted_folder_is_taken_over(tmp_path, recorded, reloads):
    """A ConfigMap volume: the file is a link into `..data`, itself a link that is replaced by a rename."""

    def publish(version: str, content: str, pitch: float) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "voices.json").write_text(content)
        (tmp_path / version / "anna.wav").write_bytes(recording(pitch=pitch))
        (tmp_path / "..data_tmp").symlink_to(version)
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")

    wav = tmp_path / "anna.wav"
    for name in ("voices.json", "anna.wav"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    presets = PresetVoices(tmp_path / "voices.json", recorded, reloads)
    publish("..1", voices_json(("anna", "One.", wav)), 200)
    presets.refresh()
    before = presets.voices[0].voice
    publish("..2", voices_json(("anna", "One.", wav)), 300)  # the same words, another recording
    presets.refresh()
    assert not (presets.voices[0].voice.prompt_mel == before.prompt_mel).all()
    publish("..3", voices_json(("anna", "Two.", wav), nova="anna"), 300)
    presets.refresh()
    assert presets.voices[0].voice.prompt_text == "Two."
    assert presets.aliases == {"nova": "anna"}


def test_what_has_not_changed_is_computed_once(file, presets, recorded, monkeypatch):
    asked = []
    monkeypatch.setattr(recorded, "voice", lambda data, text, name: asked.append(name))
    file.write_text(voices_json(anna(file), bert(file)))
    for _ in range(3):
        presets.refresh()
    file.write_text(voices_json(bert(file), anna(file), alloy="bert"))
    presets.refresh()
    assert asked == ["anna", "bert"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "Invalid JSON"),
        ('{"preset": {}}', "preset"),
        ('{"preset": [{"name": "anna", "text": "x", "file": "anna.wav"}]}', "preset.0.file"),
        ('{"preset": [{"name": " ", "text": "x", "file": "/a.wav"}]}', "preset.0.name"),
        (voices_json(("anna", "", Path("/a")), ("Anna", "", Path("/b"))), "two voices are called 'Anna'"),
        ('{"aliases": {"alloy": ""}}', "'alloy' -> ''"),
        ("x" * (5 << 20), "larger than"),
    ],
    ids=["no json", "no list", "relative", "no name", "twice", "alias to nothing", "large"],
)
def test_a_file_that_is_not_usable_changes_nothing_and_is_counted_and_logged_once(
    file, presets, reloads, caplog, content, words
):
    file.write_text(voices_json(anna(file), alloy="anna"))
    presets.refresh()
    before = presets.voices
    file.write_text(content)
    for _ in range(2):
        presets.refresh()
    assert presets.voices == before
    assert presets.aliases == {"alloy": "anna"}
    assert counts(reloads)["voices_file", "failed"] == 1
    (said,) = [record.problem for record in caplog.records if record.levelname == "ERROR"]
    assert str(file) in said
    assert words in said
    file.write_text(voices_json(bert(file)))
    presets.refresh()
    assert [voice.name for voice in presets.voices] == ["bert"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no audio", "cannot be decoded"),
        (recording(0.2), "lasts 0.20 s"),
        (recording(rate=8000), "8000 Hz"),
        (bytes(11 << 20), "bytes, at most"),
        (None, "cannot be read"),
    ],
    ids=["no audio", "short", "narrow", "large", "missing"],
)
def test_a_recording_that_is_not_usable_costs_its_voice_alone_until_it_is_mended(file, presets, reloads, data, words):
    good = (file.parent / "anna.wav").read_bytes()
    (file.parent / "anna.wav").unlink()
    if data is not None:
        (file.parent / "anna.wav").write_bytes(data)
    file.write_text(voices_json(anna(file), bert(file)))
    for _ in range(2):
        presets.refresh()
    broken, working = presets.voices
    assert broken.voice is None
    assert words in broken.problem
    assert working.voice is not None
    assert counts(reloads)["preset_voice", "failed"] == 1
    (file.parent / "anna.wav").write_bytes(good)
    presets.refresh()
    assert (presets.voices[0].problem, presets.voices[0].voice is None) == ("", False)


def test_a_pipe_in_the_place_of_a_recording_holds_nothing_up(file, presets):
    (file.parent / "anna.wav").unlink()
    os.mkfifo(file.parent / "anna.wav")
    file.write_text(voices_json(anna(file)))
    presets.refresh()
    assert "is no file" in presets.voices[0].problem
