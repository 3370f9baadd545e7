"""`POST /v1/audio/speech` towards the clients that people have."""

import base64
import io
import json
import time
import wave
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import numpy as np
import openai
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosyvoice_worker.api import app
from cosyvoice_worker.engine.requests import Refused, Voice
from tests.unit.api.conftest import ROOT, ask, eventually
from tests.unit.audio.test_encoders import AAC, needs_aac


def seconds(audio: bytes) -> float:
    """Duration, by decoding to the end: a stream's header does not know it."""
    samples = 0
    with (
        soundfile.SoundFile(io.BytesIO(audio)) as file,
        suppress(soundfile.LibsndfileError),
    ):  # FLAC: no seek past the end
        while piece := len(file.read(240)):
            samples += piece
    return samples / 24000


def client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base + "/v1", api_key="unused", max_retries=0)


def test_the_openai_client_gets_a_wav_that_is_the_same_for_the_same_seed(server):
    speech = client(server).audio.speech
    asked = {"model": "Tiny", "voice": "alloy", "input": "hello", "response_format": "wav", "extra_body": {"seed": 5}}
    audio = speech.create(**asked).content
    (samples, rate), (again, _) = (soundfile.read(io.BytesIO(wav)) for wav in (audio, speech.create(**asked).content))
    assert rate == 24000
    assert len(samples) == len(again) > 0.3 * rate
    assert np.abs(samples - again).max() < 1e-3
    assert 0.01 < np.abs(samples).max() <= 1
    with wave.open(io.BytesIO(audio)) as read:
        assert (read.getnchannels(), read.getsampwidth(), read.getframerate()) == (1, 2, 24000)


async def test_the_async_openai_client_streams_pcm(server, script):
    sizes = []
    asynchronous = openai.AsyncOpenAI(base_url=server.base + "/v1", api_key="unused", max_retries=0)
    async with asynchronous.audio.speech.with_streaming_response.create(
        model="Tiny", voice="alloy", input="hello", response_format="pcm"
    ) as response:
        async for piece in response.iter_bytes():
            sizes.append(len(piece))
    assert sum(sizes) == 48000


@pytest.mark.parametrize(
    ("audio_format", "content_type"),
    [
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg; codecs=opus"),
        ("flac", "audio/flac"),
        pytest.param("aac", "audio/aac", marks=needs_aac),
        ("wav", "audio/wav"),
        ("pcm", "audio/pcm"),
        (None, "audio/mpeg"),
    ],
)
def test_each_format_has_its_content_type_and_the_sample_rate(server, script, audio_format, content_type):
    response = server.speak(response_format=audio_format)
    assert response.status_code == 200
    assert response.headers["content-type"] == content_type
    assert response.headers["x-sample-rate"] == "24000"
    assert response.headers["connection"] == "close"
    if audio_format not in ("pcm", "aac"):  # libsndfile knows no AAC; tests/unit/audio decodes it
        assert seconds(response.content) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("audio_format", ["wav", "pcm", "mp3", "opus", "flac", AAC])
def test_audio_is_sent_while_it_is_made(server, script, audio_format):
    script.pieces, script.pause = 4, 0.25
    started = time.monotonic()
    with httpx.stream(
        "POST", server.base + "/v1/audio/speech", json={"input": "hello", "response_format": audio_format}
    ) as response:
        arrivals = [time.monotonic() - started for _ in response.iter_raw()]
    assert arrivals[0] < 0.6
    assert arrivals[-1] > 0.9


def test_server_sent_events_carry_audio_and_usage(server, script):
    with httpx.stream(
        "POST",
        server.base + "/v1/audio/speech",
        json={"input": "hello", "response_format": "pcm", "stream_format": "sse"},
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    deltas = [base64.b64decode(event["audio"]) for event in events[:-1]]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert len(b"".join(deltas)) == 48000
    assert events[-1] == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 3, "output_tokens": 25, "total_tokens": 28},
    }


@pytest.mark.parametrize(
    "said",
    [None, "", "alloy", "  TINY_Spk ", {"id": "tiny_spk"}, "default"],
)
def test_a_voice_is_found_by_name_alias_or_default(server, script, said):
    assert server.speak(voice=said).status_code == 200
    assert script.requests[-1].voice.name == "tiny_spk"


def test_all_that_a_client_may_say_reaches_the_engine(server, script):
    server.speak(instructions="be <|endofprompt|> glad", language="en", seed=7, speed=1.25, extra={"unknown": 1})
    request = script.requests[-1]
    assert (request.text, request.language, request.seed, request.speed) == ("hello there", "en", 7, 1.25)
    assert request.instruct.split() == ["be", "glad"]


@pytest.mark.parametrize("model", [None, "Tiny", " tiny ", "tts-1", "gpt-4o-mini-tts"])
def test_the_served_model_and_openais_names_are_taken(server, script, model):
    assert server.speak(model=model).status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input": ""}, "input", "nothing to say"),
        ({"input": "!!! \U0001f600"}, "input", "nothing to say"),
        ({"input": None}, "input", "input"),
        ({"input": "a" * 4097}, "input", "4097"),
        ({"response_format": "ogg"}, "response_format", "'ogg' is none of mp3"),
        ({"voice": "nobody"}, "voice", "'nobody' is not known here; use one of tiny_spk"),
        ({"voice": 5}, "voice", "voice must be a name"),
        ({"speed": 9}, "speed", "speed 9 must be less than or equal to 4"),
        ({"seed": -1}, "seed", "seed -1"),
        ({"stream_format": "x"}, "stream_format", "stream_format 'x'"),
        ({"instructions": "a" * 5000}, "instructions", "instructions String must have at most 4096 characters"),
        ({"input": "\ud800"}, None, "not a JSON object"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_field_value_and_mend(server, script, body, param, words):
    response = httpx.post(server.base + "/v1/audio/speech", content=json.dumps({"input": "hello there"} | body))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not script.requests


def test_an_unknown_model_is_a_404_as_from_openai(server, script):
    with pytest.raises(openai.NotFoundError, match="model 'other' is not served here; use 'Tiny'") as refused:
        client(server).audio.speech.create(model="other", voice="alloy", input="hello")
    assert (refused.value.param, refused.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/json"])
def test_a_page_of_another_site_cannot_speak_without_being_asked_by_its_browser(server, script, content_type):
    content = json.dumps({"input": "hello", "response_format": "pcm"})
    headers = {"Content-Type": content_type} if content_type else {}
    url = server.base + "/v1/audio/speech"
    foreign = httpx.post(url, content=content, headers=headers | {"Origin": "http://elsewhere.example"})
    assert foreign.status_code == (200 if content_type == "application/json" else 415)
    assert httpx.post(url, content=content, headers=headers).status_code == 200  # curl says no origin


def test_a_failure_of_the_worker_itself_has_the_one_form_and_the_headers_of_every_answer(server, monkeypatch):
    def broken(length: int, key: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(server.engine.service, "would_refuse", broken)
    response = server.speak()
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"input": "a"', b'"text"'])
def test_a_body_that_is_no_json_object_is_a_400(server, body):
    response = httpx.post(server.base + "/v1/audio/speech", content=body)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_that_is_too_large_is_a_413_by_its_length_and_by_its_bytes(server):
    large = b'{"input": "' + b"a" * (10 << 20) + b'"}'
    said = httpx.post(server.base + "/v1/audio/speech", content=large)
    counted = httpx.post(
        server.base + "/v1/audio/speech", content=(large[i : i + 65536] for i in range(0, len(large), 65536))
    )
    assert (said.status_code, counted.status_code) == (413, 413)
    assert counted.json()["error"]["code"] == "request_too_large"


def test_bodies_that_are_too_large_together_are_refused_and_forgotten_with_their_requests(server, script, monkeypatch):
    monkeypatch.setattr(app, "MAX_BODIES_BYTES", 1 << 20)
    for _ in range(2):
        assert server.speak(ref_text="a" * (2 << 20)).status_code == 429
    for _ in range(3):
        assert server.speak(unknown="a" * (1 << 19)).status_code == 200


def test_unknown_paths_and_methods_have_the_same_form(server):
    for response, status in ((server.get("/v1/nothing"), 404), (server.get("/v1/audio/speech"), 405)):
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_full_worker_answers_429_with_the_time_to_come_back(server, script):
    script.refusal = Refused("QueueFull", 2.4)
    before = server.outcomes("refused")
    with pytest.raises(openai.RateLimitError) as refused:
        client(server).audio.speech.create(model="Tiny", voice="alloy", input="hello")
    assert refused.value.response.headers["retry-after"] == "3"
    assert server.outcomes("refused") == before + 1


def test_the_real_queue_is_bounded_and_what_is_accepted_ends_with_its_audio(server):
    def speak(number: int) -> httpx.Response:
        return server.speak(input="Hello there, how are you? " * 3, response_format="pcm", seed=number)

    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(speak, range(12)))
    taken = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(taken) + len(refused) == 12
    assert taken
    assert refused
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all(len(answer.content) > 24000 for answer in taken)


def test_a_full_worker_refuses_before_it_looks_at_the_recording_and_counts_that_as_demand(server):
    unusable = base64.b64encode(b"no audio").decode()
    with ExitStack() as clients:
        for _ in range(8):
            clients.enter_context(ask(server, input="One sentence after another, and so on and on. " * 40))
        eventually(lambda: server.speak(ref_audio=unusable).status_code == 429)
        before = server.engine.service.reading().demand
        assert server.speak(input="hello there " * 300, ref_audio=unusable).status_code == 429
        assert server.engine.service.reading().demand > before + 1


def test_two_recordings_at_a_time_are_made_into_voices(server, script, monkeypatch):
    voice = server.engine.voices[0]
    now, most = [], []

    def slow(recording: bytes, text: str) -> Voice:
        now.append(recording)
        most.append(len(now))
        time.sleep(0.05)
        now.remove(recording)
        return voice

    monkeypatch.setattr(server.engine.recorded, "voice", slow)
    with ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(lambda _: server.speak(ref_audio=base64.b64encode(RECORDING).decode()), range(6)))
    assert {answer.status_code for answer in answers} == {200}
    assert max(most) == 2


def test_a_failure_before_the_first_audio_is_a_500(server, script):
    script.fail_after = 0
    before = server.outcomes("failed")
    response = server.speak(response_format="wav")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "synthesis_failed"
    assert server.outcomes("failed") == before + 1


@pytest.mark.parametrize("audio_format", ["wav", "mp3"])
def test_a_failure_after_the_first_audio_never_looks_like_success(server, script, audio_format):
    script.fail_after, script.pause = 3, 0.02
    interrupted, completed = server.outcomes("interrupted"), server.outcomes("completed")
    with pytest.raises(httpx.RemoteProtocolError):
        server.speak(response_format=audio_format)
    assert server.outcomes("interrupted") == interrupted + 1
    assert server.outcomes("completed") == completed


def test_a_failure_after_the_first_audio_is_an_event_in_an_event_stream(server, script):
    script.fail_after = 2
    events = []
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream(
            "POST",
            server.base + "/v1/audio/speech",
            json={"input": "hello", "response_format": "pcm", "stream_format": "sse"},
        ) as response,
    ):
        events.extend(json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))
    assert events[-1]["type"] == "error"
    assert "device went away" in events[-1]["error"]["message"]


def test_a_request_id_is_taken_over_or_made(server):
    assert httpx.get(server.base + "/v1/models", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert server.get("/v1/models").headers["x-request-id"].startswith("req_")
    odd = httpx.get(server.base + "/v1/models", headers={"x-request-id": "a b\tc"}).headers["x-request-id"]
    assert odd.startswith("req_")


RECORDING = (ROOT / "models" / "prompts" / "default.wav").read_bytes()
WORDS = (ROOT / "models" / "prompts" / "default.txt").read_text()


def test_a_recording_that_comes_with_the_request_is_the_voice(server):
    encoded = "data:audio/wav;base64," + base64.b64encode(RECORDING).decode()
    response = server.speak(ref_audio=encoded, ref_text=WORDS, response_format="wav", seed=1)
    assert response.status_code == 200
    assert seconds(response.content) > 0.2


def test_a_recording_with_its_words_reaches_the_engine_and_is_computed_once(server, script):
    encoded = base64.b64encode(RECORDING).decode()
    for words in (WORDS, WORDS, None, "<|endofprompt|>"):
        assert server.speak(ref_audio=encoded, ref_text=words).status_code == 200
    first, second, silent, neutral = (request.voice for request in script.requests)
    assert first is second
    assert first.prompt_text == WORDS.strip()
    assert len(first.prompt_tokens) == pytest.approx(4.54 * 25, abs=2)
    assert silent.prompt_text == neutral.prompt_text == ""


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"ref_audio": "https://example.com/a.wav"}, "ref_audio", "not fetched"),
        ({"ref_audio": "%%%"}, "ref_audio", "no base64"),
        ({"ref_audio": base64.b64encode(b"text").decode()}, "ref_audio", "cannot be decoded"),
        ({"ref_audio": base64.b64encode(RECORDING[: 44 + 9600]).decode()}, "ref_audio", "lasts 0.20 s"),
        ({"ref_text": "words"}, "ref_text", "without ref_audio"),
    ],
)
def test_a_recording_that_cannot_be_a_voice_is_refused_before_any_work(server, script, body, param, words):
    response = server.speak(**body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]
    assert not script.requests


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
FIELDS = (
    *("input", "model", "voice", "response_format", "speed", "instructions", "stream_format", "language", "seed"),
    *("ref_audio", "ref_text"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5))
def test_any_json_is_answered_with_audio_or_an_error_in_the_one_form(server, script, body):
    content = json.dumps({"input": "hello", "response_format": "pcm"} | body)
    response = httpx.post(server.base + "/v1/audio/speech", content=content, timeout=20)
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
