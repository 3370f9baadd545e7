"""Pages of other sites: closed by default, and what one setting opens."""

import json
from collections.abc import Iterator

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cosyvoice_worker.scheduling import service as scheduling
from cosyvoice_worker.settings import Settings, SettingsError, read_settings
from tests.unit.api.conftest import TINY, Running, eventually, start
from tests.unit.voices.conftest import recording

FRIEND, STRANGER = "https://app.example", "https://elsewhere.example"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,x-a"}


@pytest.fixture(scope="module")
def friendly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A worker that pages of one other site may ask, with a key."""
    keys = tmp_path_factory.mktemp("keys")
    (keys / "anna").write_text("anna-key")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduling, "CALIBRATION_SECONDS", 0.0)
        server = start(cors_origins=(FRIEND,), api_keys_dir=keys)
        eventually(lambda: server.get("/readyz").status_code == 200, seconds=120)
        yield server
        server.end()


def preflight(server: Running, origin: str) -> httpx.Response:
    return httpx.options(server.base + "/v1/audio/speech", headers=ASKS | {"Origin": origin})


def allows(response: httpx.Response, origin: str) -> bool:
    return response.headers.get("access-control-allow-origin") == origin


def test_by_default_no_page_of_another_site_may_ask_or_read(server):
    assert preflight(server, STRANGER).status_code == 405
    for response in (
        preflight(server, STRANGER),
        httpx.get(server.base + "/v1/models", headers={"Origin": STRANGER}),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_page_of_another_site_cannot_upload_a_voice_by_a_form(server):
    files = {"audio_sample": ("a.wav", recording(), "audio/wav")}
    url, form = server.base + "/v1/audio/voices", {"name": "planted"}
    foreign = httpx.post(url, data=form, files=files, headers={"Origin": STRANGER})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "foreign_origin")
    assert "planted" not in httpx.get(url).text


def test_a_page_that_is_let_in_asks_without_a_key_and_may_send_one(friendly):
    answer = preflight(friendly, FRIEND)
    assert answer.status_code == 200
    assert allows(answer, FRIEND)
    assert set(answer.headers["access-control-allow-headers"].split(",")) >= {"authorization", "content-type", "x-a"}
    assert "access-control-allow-credentials" not in answer.headers


def test_it_may_read_answers_with_their_headers_and_errors_too(friendly):
    headers = {"Origin": FRIEND, "Authorization": "Bearer anna-key"}
    spoken = httpx.post(
        friendly.base + "/v1/audio/speech",
        json={"input": "hello", "response_format": "pcm"},
        headers=headers,
        timeout=30,
    )
    assert spoken.status_code == 200
    assert allows(spoken, FRIEND)
    assert "X-Sample-Rate" in spoken.headers["access-control-expose-headers"]
    for path, key, status in (("/v1/models", "wrong", 401), ("/v1/nothing", "anna-key", 404)):
        refused = httpx.get(friendly.base + path, headers=headers | {"Authorization": f"Bearer {key}"})
        assert refused.status_code == status
        assert allows(refused, FRIEND)


def test_any_other_page_may_still_do_nothing(friendly):
    assert preflight(friendly, STRANGER).status_code == 400
    headers = {"Origin": STRANGER, "Authorization": "Bearer anna-key"}
    assert "access-control-allow-origin" not in httpx.get(friendly.base + "/v1/models", headers=headers).headers
    form = httpx.post(friendly.base + "/inference_sft", data={"tts_text": "a", "spk_id": "b"}, headers=headers)
    assert form.status_code == 403


def test_websockets_and_forms_know_the_same_sites(friendly):
    url = friendly.base.replace("http", "ws") + "/v1/audio/speech/stream"
    offered = ["speech", "openai-insecure-api-key.anna-key"]
    with connect(url, origin=FRIEND, subprotocols=offered) as session:
        session.send(json.dumps({"type": "input.done"}))
        assert json.loads(session.recv(10))["type"] == "session.done"
    with pytest.raises(InvalidStatus) as refused:
        connect(url, origin=STRANGER, subprotocols=offered)
    assert refused.value.response.status_code == 403
    form = httpx.post(
        friendly.base + "/inference_sft",
        data={"tts_text": "hello", "spk_id": "tiny_spk"},
        headers={"Origin": FRIEND, "Authorization": "Bearer anna-key"},
        timeout=30,
    )
    assert form.status_code == 200


@pytest.mark.parametrize(
    ("said", "origins"),
    [
        ("", ()),
        ("*", ("*",)),
        (" https://App.example , http://localhost:3000,", ("https://app.example", "http://localhost:3000")),
    ],
)
def test_origins_are_separated_by_commas(monkeypatch, said, origins):
    monkeypatch.setenv("COSYVOICE_CORS_ORIGINS", said)
    assert read_settings(["--model-dir", str(TINY)]).cors_origins == origins
    assert Settings(model_dir=TINY).cors_origins == origins


@pytest.mark.parametrize(
    "said", ["app.example", "https://app.example/", "null", "*,https://a.example", "ftp://a", "https://"]
)
def test_what_is_no_origin_stops_the_start_with_the_mend(monkeypatch, said):
    monkeypatch.setenv("COSYVOICE_CORS_ORIGINS", said)
    with pytest.raises(SettingsError, match=r"COSYVOICE_CORS_ORIGINS=.*(write https://host|write it alone)"):
        read_settings(["--model-dir", str(TINY)])
