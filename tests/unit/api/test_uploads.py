"""Voices that clients upload, and voices of the service, towards the clients."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from cosyvoice_worker import live_files
from cosyvoice_worker.scheduling import service as scheduling
from tests.unit.api.conftest import Running, eventually, start
from tests.unit.voices.conftest import recording, voices_json


@pytest.fixture(autouse=True)
def nothing_stays(running: Running) -> Iterator[None]:
    yield
    running.voices_file.unlink(missing_ok=True)
    for file in running.voice_store.iterdir():
        file.unlink()
    eventually(lambda: {voice["source"] for voice in own(running)} == {"model"})


def own(server: Running) -> list[dict[str, object]]:
    listed = server.get("/v1/audio/voices").json()["voices"]
    return [voice for voice in listed if "alias_of" not in voice]


def names(server: Running) -> list[object]:
    return [voice["name"] for voice in own(server)]


def upload(server: Running, name: str = "anna", audio: bytes | None = None, **fields: str) -> httpx.Response:
    files = {"audio_sample": ("a.wav", recording() if audio is None else audio, "audio/wav")}
    return httpx.post(server.base + "/v1/audio/voices", data={"name": name, **fields}, files=files, timeout=30)


def delete(server: Running, name: str) -> httpx.Response:
    return httpx.delete(f"{server.base}/v1/audio/voices/{name}", timeout=10)


def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base + "/v1", api_key="unused", max_retries=0)


def test_the_openai_client_uploads_speaks_in_and_deletes_a_voice(server, script):
    voices = client(server).audio.voices
    voice = voices.create(
        name="Anna Lena", audio_sample=("a.wav", recording()), consent="cons_1", extra_body={"ref_text": "Her words."}
    )
    assert (voice.id, voice.name, voice.object) == ("Anna Lena", "Anna Lena", "audio.voice")
    assert abs(voice.created_at - time.time()) < 60
    client(server).audio.speech.create(model="Tiny", voice="anna lena", input="hello", response_format="pcm")
    assert script.requests[-1].voice.name == "Anna Lena"
    assert script.requests[-1].voice.prompt_text == "Her words."
    assert names(server) == ["tiny_spk", "Anna Lena"]
    assert voices.delete("anna lena").deleted
    assert names(server) == ["tiny_spk"]
    with pytest.raises(openai.BadRequestError, match="'anna lena' is not known here"):
        client(server).audio.speech.create(model="Tiny", voice="anna lena", input="hello")
    with pytest.raises(openai.NotFoundError, match="no uploaded voice"):
        voices.delete("anna lena")


def test_a_name_of_another_script_goes_through_the_whole_way(server, script):
    assert upload(server, "中文女").status_code == 200
    assert server.speak(voice="中文女").status_code == 200
    assert script.requests[-1].voice.name == "中文女"
    assert delete(server, "中文女").status_code == 200


@pytest.fixture
def second(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Another worker of the same service."""
    monkeypatch.setattr(live_files, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(scheduling, "CALIBRATION_SECONDS", 0.0)
    other = start(voice_store_dir=server.voice_store)
    eventually(lambda: other.get("/readyz").status_code == 200, seconds=120)
    yield other
    other.end()


def test_every_worker_has_an_upload_and_of_two_at_once_all_have_the_same(server, second):
    upload(server, "anna", ref_text="One.")
    eventually(lambda: "anna" in names(second), seconds=5)
    assert second.speak(voice="anna", response_format="pcm").status_code == 200
    with ThreadPoolExecutor(2) as clients:
        answers = list(clients.map(lambda worker: upload(worker, "Bert", ref_text=worker.base), (server, second)))
    assert {answer.status_code for answer in answers} == {200}
    eventually(lambda: own(server)[1:] == own(second)[1:] and len(own(server)) == 3)
    delete(second, "anna")
    eventually(lambda: names(server) == ["tiny_spk", "Bert"], seconds=5)


@pytest.mark.parametrize(
    ("name", "audio", "fields", "param", "words"),
    [
        ("", None, {}, "name", "name is missing"),
        ("../anna", None, {}, "name", "'../anna' cannot be a voice's"),
        ("a/b", None, {}, "name", "'a/b' cannot be"),
        ("..", None, {}, "name", "cannot be"),
        ("a\tb", None, {}, "name", "cannot be"),
        ("a" * 65, None, {}, "name", "at most 64"),
        ("anna", b"no audio", {}, "audio_sample", "cannot be decoded"),
        ("anna", recording(0.2), {}, "audio_sample", "lasts 0.20 s"),
        ("anna", recording(rate=8000), {}, "audio_sample", "8000 Hz"),
        ("anna", None, {"ref_text": "a" * 5000}, "ref_text", "4096 characters"),
    ],
)
def test_what_cannot_be_a_voice_is_a_400_that_names_field_and_mend(server, name, audio, fields, param, words):
    response = upload(server, name, audio, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]
    assert not list(server.voice_store.iterdir())


@pytest.mark.parametrize(
    "sent",
    [
        {"data": {"name": "anna"}},
        {"data": {"name": "anna", "audio_sample": "text"}},
        {"json": {"name": "anna"}},
        {"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data; boundary=x"}},
        {"content": b"", "headers": {"content-type": "multipart/form-data"}},
        {"files": [("audio_sample", recording())] * 9, "data": {"name": "anna"}},
    ],
)
def test_a_body_that_is_no_such_form_is_a_400_in_the_one_form(server, sent):
    response = httpx.post(server.base + "/v1/audio/voices", timeout=10, **sent)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_uploads_are_bounded_but_one_may_always_be_replaced(server):
    for name in ("a", "b", "c"):
        assert upload(server, name).status_code == 200
    full = upload(server, "d")
    assert (full.status_code, full.json()["error"]["code"]) == (400, "too_many_voices")
    assert upload(server, "B").status_code == 200
    assert len(own(server)) == 4


@pytest.mark.parametrize("name", ["tiny_spk", "Service", "echo", "default"])
def test_a_name_that_means_another_voice_is_neither_taken_nor_deleted(server, tmp_path, name):
    (tmp_path / "s.wav").write_bytes(recording())
    server.voices_file.write_text(voices_json(("service", "", tmp_path / "s.wav"), echo="tiny_spk"))
    eventually(lambda: "service" in names(server))
    response = upload(server, name)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "voice_exists")
    assert delete(server, name).status_code in (400, 404)
    assert names(server) == ["service", "tiny_spk"]


def test_without_a_store_uploads_are_refused_and_voices_are_listed(server, monkeypatch):
    monkeypatch.setattr(server.server.config.app.state.worker.voices(), "store", None)
    for response in (upload(server), delete(server, "anna")):
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "no_voice_store"
        assert "spec.voices.store" in response.json()["error"]["message"]
    assert server.get("/v1/audio/voices").status_code == 200


def test_a_store_that_cannot_be_written_is_a_500_that_says_why(server, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    response = upload(server)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the voice store cannot be written: No space left on device"


def test_the_services_voices_and_aliases_are_taken_over_without_a_restart(server, script, tmp_path):
    (tmp_path / "anna.wav").write_bytes(recording())
    broken = tmp_path / "bert.wav"
    server.voices_file.write_text(
        voices_json(("anna", "Hi.", tmp_path / "anna.wav"), ("bert", "", broken), nova="anna", onyx="tiny_spk")
    )
    eventually(lambda: "anna" in names(server))
    listed = {voice["name"]: voice for voice in server.get("/v1/audio/voices").json()["data"]}
    assert [listed[name]["available"] for name in ("anna", "bert", "tiny_spk")] == [True, False, True]
    assert (listed["nova"]["alias_of"], listed["alloy"]["alias_of"]) == ("anna", "anna")
    for said, spoken in (("Nova", "anna"), ("onyx", "tiny_spk"), (None, "anna"), ("alloy", "anna")):
        assert server.speak(voice=said).status_code == 200
        assert script.requests[-1].voice.name == spoken
    refused = server.speak(voice="bert")
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "voice 'bert' is not available: its recording cannot be read"
    failed = 'cosyvoice_reloads_total{outcome="failed",what="voices_file"}'
    before = server.metric(failed) if failed in server.get("/metrics").text else 0
    server.voices_file.write_text("{")
    eventually(lambda: failed in server.get("/metrics").text and server.metric(failed) == before + 1)
    assert server.speak(voice="nova").status_code == 200
    broken.write_bytes(recording())
    eventually(lambda: server.speak(voice="bert").status_code == 200)


def test_the_listing_has_what_each_client_reads(server):
    """OpenAI's `data` of objects; Open WebUI's `voices[].id` and `.name`."""
    upload(server)
    answer = server.get("/v1/audio/voices").json()
    assert answer["object"] == "list"
    assert answer["data"] == answer["voices"]
    for voice in answer["voices"]:
        assert voice["id"] == voice["name"]
    assert json.dumps(answer).count('"uploaded"') == 2
