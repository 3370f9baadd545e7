"""API keys: who may speak, and how keys come and go while the worker runs."""

import asyncio
import hmac
import io
import json
import logging
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cosyvoice_worker import api_keys, json_log, live_files
from cosyvoice_worker.api_keys import ApiKeys
from cosyvoice_worker.lifecycle import Engine
from cosyvoice_worker.live_files import Reloads
from cosyvoice_worker.scheduling import service as scheduling
from cosyvoice_worker.settings import Settings
from tests.unit.api.conftest import Running, eventually, start

ANNA, BERT = "sk-anna-0123456789", "sk-bert/+=0123456789"


def mount(folder: Path, **keys: str) -> None:
    """What the kubelet does: all files at once, by the swap of one symbolic link."""
    folder.mkdir(exist_ok=True)
    content = folder / f"..{uuid.uuid4()}"
    content.mkdir()
    for name, text in keys.items():
        (content / name).write_text(text)
    (folder / "..data_tmp").symlink_to(content.name)
    (folder / "..data_tmp").rename(folder / "..data")
    for name in keys:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in keys:
            entry.unlink()


@pytest.fixture(scope="module")
def _guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    folder = tmp_path_factory.mktemp("keys") / "mounted"
    mount(folder, anna=ANNA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_files, "POLL_SECONDS", 0.05)
        patch.setattr(scheduling, "CALIBRATION_SECONDS", 0.0)
        server = start(api_keys_dir=folder, voice_store_dir=tmp_path_factory.mktemp("store"))
        eventually(lambda: server.get("/readyz").status_code == 200, seconds=120)
        yield server, folder
        server.end()


@pytest.fixture
def keys(_guarded: tuple[Running, Path]) -> Path:
    return _guarded[1]


@pytest.fixture
def guarded(_guarded: tuple[Running, Path]) -> Running:
    """A worker that Anna has a key of."""
    server, folder = _guarded
    mount(folder, anna=ANNA)
    eventually(lambda: status(server, ANNA) == 200)
    return server


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def status(server: Running, key: str) -> int:
    return httpx.get(server.base + "/v1/models", headers=bearer(key)).status_code


def client(server: Running, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base + "/v1", api_key=key, max_retries=0)


def test_the_openai_client_speaks_with_a_key_and_is_told_without_one(guarded):
    asked = {"model": "Tiny", "voice": "alloy", "input": "hello", "response_format": "pcm"}
    assert client(guarded, ANNA).audio.speech.create(**asked).content
    with pytest.raises(openai.AuthenticationError) as refused:
        client(guarded, "sk-wrong").audio.speech.create(**asked)
    assert (refused.value.status_code, refused.value.code) == (401, "invalid_api_key")
    assert "sk-wrong" not in str(refused.value)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/audio/speech"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/Tiny"),
        ("GET", "/v1/audio/models"),
        ("GET", "/v1/audio/voices"),
        ("POST", "/v1/audio/voices"),
        ("DELETE", "/v1/audio/voices/anna"),
        ("POST", "/inference_sft"),
        ("GET", "/inference_zero_shot"),
        ("GET", "/openapi.json"),
        ("GET", "/v1/audio/speech/stream"),
        ("GET", "/nothing/here"),
        ("GET", "//healthz"),
        ("GET", "/healthz/"),
        ("GET", "/load/../v1/models"),
        ("OPTIONS", "/v1/audio/speech"),
    ],
)
def test_whatever_is_not_open_answers_401_in_openais_form(guarded, method, path):
    response = httpx.request(method, guarded.base + path)
    assert response.status_code == 401
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/load", "/"])
def test_what_the_cluster_asks_and_the_page_itself_stay_open(guarded, path):
    assert guarded.get(path).status_code == 200


@pytest.mark.parametrize(
    "header",
    ["Bearer ", "Bearer", "", ANNA, f"Basic {ANNA}", f"Bearer {ANNA}x", f"Bearer {ANNA[:-1]}", f"Bearer {ANNA} {ANNA}"],
)
def test_no_other_header_gets_in(guarded, header):
    with socket.create_connection(("127.0.0.1", guarded.server.port)) as client:  # httpx does not send all of these
        client.sendall(f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: {header}\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 401")


def test_the_scheme_is_read_without_case_and_bytes_that_are_no_text_are_a_401(guarded):
    assert httpx.get(guarded.base + "/v1/models", headers={"Authorization": f"bearer  {ANNA}"}).status_code == 200
    assert httpx.get(guarded.base + "/v1/models", headers={"Authorization": b"Bearer \xff\xfe"}).status_code == 401


def test_a_body_is_not_read_of_whoever_has_no_key(guarded):
    assert httpx.post(guarded.base + "/v1/audio/speech", content=b"a" * (11 << 20)).status_code == 401


def test_keys_come_change_and_go_without_a_restart(guarded, keys):
    mount(keys, anna=f"{ANNA}\n\n new-key \r\n", bert=BERT)
    eventually(lambda: status(guarded, BERT) == 200)
    assert status(guarded, "new-key") == status(guarded, ANNA) == 200
    mount(keys, bert=BERT)
    eventually(lambda: status(guarded, ANNA) == 401)
    assert status(guarded, BERT) == 200


def test_a_directory_without_a_key_refuses_everybody(guarded, keys):
    mount(keys, anna="\n")
    eventually(lambda: status(guarded, ANNA) == 401)
    assert guarded.get("/readyz").status_code == 200


def socket_url(server: Running) -> str:
    return server.base.replace("http", "ws") + "/v1/audio/speech/stream"


@pytest.mark.parametrize("given", [{}, {"additional_headers": bearer("wrong")}, {"subprotocols": ["speech"]}])
def test_a_websocket_without_a_key_is_not_opened(guarded, given):
    with pytest.raises(InvalidStatus) as refused:
        connect(socket_url(guarded), **given)
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"


def test_a_websocket_brings_its_key_in_the_header(guarded):
    with connect(socket_url(guarded), additional_headers=bearer(ANNA)) as session:
        session.send(json.dumps({"type": "input.done"}))
        assert json.loads(session.recv(10))["type"] == "session.done"


def test_a_browsers_websocket_brings_its_key_as_a_subprotocol_which_is_never_sent_back(guarded):
    with connect(socket_url(guarded), subprotocols=["speech", f"openai-insecure-api-key.{ANNA}"]) as session:
        assert session.subprotocol == "speech"
        assert ANNA not in str(session.response.headers)
        session.send(json.dumps({"type": "input.done"}))
        assert json.loads(session.recv(10))["type"] == "session.done"


@pytest.fixture
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a worker that logs all it can writes."""
    handlers, level, written = logging.root.handlers[:], logging.root.level, io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    json_log.configure("debug")
    yield written
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_logs_and_metrics_have_the_keys_name_and_never_the_key(guarded, own_logging):
    before = guarded.metric("cosyvoice_unauthorized_total")
    body = {"input": "hello", "response_format": "pcm"}
    httpx.post(guarded.base + "/v1/audio/speech", json=body, headers=bearer(ANNA), timeout=30)
    httpx.post(guarded.base + "/v1/audio/speech", json=body, headers=bearer("sk-wrong"))
    with connect(socket_url(guarded), subprotocols=["speech", f"openai-insecure-api-key.{ANNA}"]):
        pass
    assert guarded.metric("cosyvoice_unauthorized_total") == before + 1
    assert guarded.metric('cosyvoice_key_requests_total{key="anna"}') > 0
    lines = own_logging.getvalue().splitlines()
    assert any('"api_key": "anna"' in line for line in lines)
    assert not [line for line in lines if ANNA in line or "sk-wrong" in line]
    assert ANNA not in guarded.get("/metrics").text


def test_keys_count_before_the_model_is_loaded(tmp_path):
    mount(tmp_path / "keys", anna=ANNA)

    async def load(_: Settings) -> Engine:
        await asyncio.Event().wait()
        raise AssertionError

    server = start(load, api_keys_dir=tmp_path / "keys")
    try:
        assert (status(server, BERT), status(server, ANNA)) == (401, 200)
    finally:
        server.end()


# --- the directory itself


@pytest.fixture
def reloads() -> Reloads:
    return Reloads()


def test_a_missing_directory_and_a_file_in_its_place_open_nothing(tmp_path, reloads, caplog):
    assert ApiKeys(tmp_path / "missing", reloads).name_of("") is None
    (tmp_path / "file").write_text(ANNA)
    assert ApiKeys(tmp_path / "file", reloads).name_of(ANNA) is None
    assert [record.problem for record in caplog.records] == [
        f"{tmp_path}/missing; No such file or directory; no key: every request is refused",
        f"{tmp_path}/file; Not a directory; no key: every request is refused",
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"good-key\nbad key\n", "anna opens nothing: its line 2 is not all of visible ASCII characters"),
        ("schlüssel".encode(), "anna opens nothing: its line 1 is not all of visible ASCII characters"),
        (b"a" * ((1 << 20) + 1), "anna opens nothing: it is larger than 1048576 bytes"),
    ],
)
def test_a_file_that_holds_no_keys_opens_nothing_is_named_once_and_the_others_count(
    tmp_path, reloads, caplog, content, problem
):
    (tmp_path / "anna").write_bytes(content)
    (tmp_path / "bert").write_text(BERT)
    keys = ApiKeys(tmp_path, reloads)
    keys.refresh()
    assert keys.name_of("good-key") is None
    assert keys.name_of(BERT) == "bert"
    assert [record.problem for record in caplog.records if hasattr(record, "problem")] == [f"{tmp_path}; {problem}"]
    (tmp_path / "anna").write_text(ANNA)
    keys.refresh()
    assert keys.name_of(ANNA) == "anna"
    assert dict(((what, how), count) for what, how, count in reloads.counts())[("api_keys", "taken")] == 2


def test_folders_and_what_kubernetes_hides_are_no_keys(tmp_path, reloads):
    (tmp_path / "..data").write_text("hidden")
    (tmp_path / "folder").mkdir()
    (tmp_path / "anna").write_text(ANNA)
    keys = ApiKeys(tmp_path, reloads)
    assert keys.name_of("hidden") is None
    assert keys.name_of(ANNA) == "anna"


def test_files_that_vanish_while_they_are_read_are_read_anew(tmp_path, reloads, monkeypatch):
    (tmp_path / "anna").write_text(ANNA)
    read, times = api_keys._keys_of, []

    def vanishing(file, problems):
        times.append(file)
        if len(times) == 1:
            raise FileNotFoundError
        return read(file, problems)

    monkeypatch.setattr(api_keys, "_keys_of", vanishing)
    assert ApiKeys(tmp_path, reloads).name_of(ANNA) == "anna"


def test_every_key_is_compared_whichever_matches_and_by_digests_of_one_length(tmp_path, reloads, monkeypatch):
    for name in ("anna", "bert", "carl"):
        (tmp_path / name).write_text(f"key-of-{name}\nanother-{name * 9}\n")
    compared, in_constant_time = [], hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return in_constant_time(one, other)

    keys = ApiKeys(tmp_path, reloads)
    monkeypatch.setattr(hmac, "compare_digest", compare)
    for given in ("key-of-anna", "another-carlcarlcarlcarlcarlcarlcarlcarlcarl", "none", ""):
        compared.clear()
        keys.name_of(given)
        assert compared == [(32, 32)] * 6
