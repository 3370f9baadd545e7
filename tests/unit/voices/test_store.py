"""Uploaded voices in a directory that several workers share."""

import os
import threading
import time
from pathlib import Path

import pytest

from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.live_files import Reloads
from cosyvoice_worker.voices.catalogue import VoiceCatalogue, VoiceUnavailable
from cosyvoice_worker.voices.presets import PresetVoices
from cosyvoice_worker.voices.store import VoiceStore
from tests.unit.engine.tiny import voice
from tests.unit.voices.conftest import recording, voices_json


@pytest.fixture
def store(tmp_path: Path, reloads: Reloads) -> VoiceStore:
    return VoiceStore(tmp_path, reloads)


def names(store: VoiceStore) -> list[str]:
    store.refresh()
    return [voice.name for voice in store.voices]


def test_what_one_worker_writes_another_reads(store):
    other = VoiceStore(store.folder, Reloads())
    assert names(other) == []
    store.put("Zoë 1", "Words,\nof two lines.", b"first")
    store.put("anna", "", b"\n\nsecond")
    assert names(other) == ["Zoë 1", "anna"]
    assert other.read("ZOË 1") == ("Words,\nof two lines.", b"first")
    assert other.read("anna") == ("", b"\n\nsecond")
    assert store.remove("ANNA")
    assert not other.remove("anna")
    assert names(other) == ["Zoë 1"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", ".", "..", "a\0b", "x" * 300])
def test_no_name_leads_out_of_the_directory(store, name):
    store.put(name, "", b"audio")
    (file,) = store.folder.iterdir()
    assert file.parent == store.folder
    assert names(store) == [name]
    store.remove(name)
    assert not list(store.folder.iterdir())


def test_of_writers_at_the_same_time_each_reader_sees_one_whole_upload(store):
    contents = {str(i): bytes([i]) * (1 << 18) for i in range(8)}
    stores = [VoiceStore(store.folder, Reloads()) for _ in contents]
    ended = threading.Event()
    seen: list[tuple[str, bytes]] = []

    def write(writer: VoiceStore, text: str) -> None:
        for _ in range(10):
            writer.put("anna", text, contents[text])

    def read() -> None:
        while not ended.is_set():
            seen.append(store.read("anna"))

    store.put("anna", "0", contents["0"])
    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=pair) for pair in zip(stores, contents, strict=True)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    reader.join()
    assert len(seen) > 1
    assert all(contents[text] == audio for text, audio in seen)
    assert len(list(store.folder.iterdir())) == 1
    assert names(store) == names(stores[0]) == ["anna"]


def test_a_write_that_fails_leaves_what_was_there(store, monkeypatch):
    store.put("anna", "before", b"audio")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.put("anna", "after", b"other")
    assert store.read("anna") == ("before", b"audio")
    assert len(list(store.folder.iterdir())) == 1


def test_what_an_upload_that_never_ended_has_left_is_removed_later_by_the_next_one(store):
    for name, age in ((".upload-old", 7200), (".upload-now", 0)):
        (store.folder / name).write_bytes(b"half")
        os.utime(store.folder / name, (time.time() - age,) * 2)
    assert names(store) == []
    store.put("anna", "", b"audio")
    assert {file.name for file in store.folder.glob(".*")} == {".upload-now"}


def test_a_damaged_file_is_left_out_and_counted_once(store, reloads):
    store.put("anna", "", b"audio")
    for name, content in (("x.voice", b"{"), ("y.voice", next(store.folder.iterdir()).read_bytes())):
        (store.folder / name).write_bytes(content)
    (store.folder / "README").write_text("not ours")
    assert names(store) == names(store) == ["anna"]
    assert ("uploaded_voice", "failed", 2) in list(reloads.counts())


def test_a_directory_that_goes_away_leaves_the_listing_as_it_was(store, reloads):
    store.put("anna", "", b"audio")
    assert names(store) == ["anna"]
    away = store.folder.rename(store.folder.with_name("away"))
    assert names(store) == names(store) == ["anna"]
    assert ("voice_store", "failed", 1) in list(reloads.counts())
    away.rename(store.folder)
    store.remove("anna")
    assert names(store) == []


@pytest.fixture
def catalogue(store, recorded, reloads, tmp_path_factory) -> VoiceCatalogue:
    presets = PresetVoices(tmp_path_factory.mktemp("mounted") / "voices.json", recorded, reloads)
    return VoiceCatalogue([voice()], presets, store, recorded, reloads)


def spoken(catalogue: VoiceCatalogue, name: str) -> Voice:
    known = catalogue.book.find(name)
    return catalogue.at_hand(known) or catalogue.read(known)


def test_an_uploaded_voice_is_computed_when_it_is_first_used_and_then_kept(catalogue):
    catalogue.store.put("anna", "Words.", recording())
    catalogue.refresh()
    known = catalogue.book.find("anna")
    assert (known.source, catalogue.at_hand(known)) == ("uploaded", None)
    first = spoken(catalogue, "anna")
    assert (first.name, first.prompt_text) == ("anna", "Words.")
    assert catalogue.at_hand(known) is first


def test_an_upload_over_another_is_the_one_that_speaks(catalogue):
    catalogue.store.put("anna", "One.", recording())
    catalogue.refresh()
    assert spoken(catalogue, "anna").prompt_text == "One."
    catalogue.store.put("anna", "Two.", recording())
    catalogue.refresh()
    assert spoken(catalogue, "anna").prompt_text == "Two."


def test_the_same_recording_under_two_names_is_two_voices(catalogue):
    for name in ("anna", "bert"):
        catalogue.store.put(name, "Words.", recording())
    catalogue.refresh()
    assert [spoken(catalogue, name).name for name in ("anna", "bert")] == ["anna", "bert"]


def test_an_uploaded_voice_whose_file_is_gone_or_is_no_voice_says_so(catalogue):
    catalogue.store.put("anna", "", recording())
    catalogue.store.put("bert", "", b"no audio")
    catalogue.refresh()
    anna, bert = catalogue.book.find("anna"), catalogue.book.find("bert")
    catalogue.store.remove("anna")
    with pytest.raises(VoiceUnavailable, match="deleted just now"):
        catalogue.read(anna)
    with pytest.raises(VoiceUnavailable, match="cannot be decoded"):
        catalogue.read(bert)


def test_the_services_voices_go_before_the_models_and_those_before_uploads(catalogue, reloads, tmp_path_factory):
    wav = tmp_path_factory.mktemp("sources") / "service.wav"
    wav.write_bytes(recording())
    catalogue.store.put("v0", "", recording())
    catalogue.store.put("anna", "", recording())
    catalogue._presets._file.write_text(voices_json(("service", "", wav), nova="anna", echo="nobody"))
    catalogue.refresh()
    assert [(known.name, known.source) for known in catalogue.book.voices] == [
        *(("service", "preset"), ("v0", "model"), ("anna", "uploaded"))
    ]
    assert catalogue.book.default.name == "service"
    assert catalogue.book.find("nova").name == "anna"
    assert catalogue.book.find("echo") is None
    assert ("alias", "failed", 1) in list(reloads.counts())
