"""`WS /v1/audio/speech/stream`: text in pieces, audio out, towards a real client library."""

import asyncio
import base64
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from cosyvoice_worker.api import dictation as route
from cosyvoice_worker.engine.requests import Refused, SynthesisFailed
from cosyvoice_worker.scheduling.stream import Dictation
from tests.unit.api.conftest import eventually
from tests.unit.api.test_lifecycle import own_server  # noqa: F401 - a fixture
from tests.unit.api.test_speech import RECORDING

LONG = "One sentence after another, and so on and on. " * 8
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
}


class Client:
    def __init__(self, connection: ClientConnection) -> None:
        self.socket = connection

    def say(self, kind: str, **fields: object) -> None:
        self.socket.send(json.dumps({"type": kind} | fields))

    def hear(self) -> dict | bytes:
        message = self.socket.recv(60)
        return message if isinstance(message, bytes) else json.loads(message)

    def until(self, *kinds: str) -> tuple[list[dict], bytes]:
        """Events up to the first of these kinds, and the audio between them."""
        events, audio = [], b""
        while not events or events[-1]["type"] not in kinds:
            message = self.hear()
            if isinstance(message, bytes):
                audio += message
            else:
                events.append(message)
        return events, audio

    def closed(self) -> int:
        try:
            while True:
                self.socket.recv(30)
        except ConnectionClosed as closed:
            return closed.rcvd.code


@contextmanager
def session(server, **headers: str) -> Iterator[Client]:
    url = server.base.replace("http", "ws") + "/v1/audio/speech/stream"
    with connect(url, additional_headers=headers, max_size=None) as connection:
        yield Client(connection)


def kinds(events: list[dict]) -> list[str]:
    return [event["type"] for event in events]


def test_audio_of_the_first_sentence_comes_while_the_text_is_still_being_written(server):
    with session(server) as client:
        client.say("session.config", voice="alloy", response_format="pcm", seed=4, unknown=1)
        client.say("input.text", text="Hello the")
        client.say("input.text", text="re, how are you? And this is not yet")
        start = client.hear()
        assert start == {
            "type": "audio.start",
            "sentence_index": 0,
            "format": "pcm",
            "sample_rate": 24000,
            "channels": 1,
        }
        first = client.hear()
        assert isinstance(first, bytes)
        client.say("input.text", text=" the end.")
        client.say("input.done")
        events, audio = client.until("session.done")
    assert kinds(events) == ["audio.done", "session.done"]
    done = events[0]
    assert done["total_bytes"] == len(first + audio)
    assert done["usage"]["output_tokens"] > 0
    samples = np.frombuffer(first + audio, "<i2")
    assert len(samples) > 0.5 * 24000
    assert np.abs(samples).max() > 300


def test_one_text_after_another_each_is_a_whole_file_of_its_own(server):
    with session(server) as client:
        for index in range(2):
            client.say("input.text", text="Hello there.")
            client.say("input.done")
            events, audio = client.until("session.done")
            assert kinds(events) == ["audio.start", "audio.done", "session.done"]
            assert events[0]["sentence_index"] == events[1]["sentence_index"] == index
            assert events[0]["format"] == "wav"
            assert audio[:4] == b"RIFF"
            assert audio.count(b"RIFF") == 1


def test_cancel_stops_at_once_and_the_next_text_is_spoken(server):
    before = server.outcomes("cancelled")
    with session(server) as client:
        client.say("session.config", response_format="pcm")
        client.say("input.text", text=LONG * 5)
        client.until("audio.start")
        client.say("input.cancel")
        events, _ = client.until("session.done")
        assert events[-1]["cancelled"] is True
        eventually(lambda: server.engine.service.reading().running == 0, seconds=5)
        assert server.outcomes("cancelled") == before + 1
        client.say("input.text", text="Hello there.")
        client.say("input.done")
        events, audio = client.until("session.done")
        assert kinds(events) == ["audio.start", "audio.done", "session.done"]
        assert audio


def test_a_client_that_leaves_frees_the_engine(server):
    with session(server) as client:
        client.say("input.text", text=LONG * 5)
        client.until("audio.start")
    eventually(lambda: server.engine.service.reading().running == 0, seconds=5)


@pytest.mark.parametrize(
    ("said", "param", "words"),
    [
        ("{", None, "must be a JSON object"),
        ("[]", None, "must be a JSON object"),
        ("[" * 100_000, None, "must be a JSON object"),
        (b"bytes", None, "must be a JSON object"),
        ('{"type": "input.speech"}', "type", "'input.speech' is none of session.config, input.text"),
        ('{"type": ["input.text"]}', "type", "is none of"),
        ('{"type": "input.text"}', "text", "text must be a string"),
        ('{"type": "input.text", "text": 5}', "text", "text must be a string"),
        (r'{"type": "input.text", "text": "\ud800"}', "text", "surrogate"),
        (json.dumps({"type": "input.text", "text": "a" * 20_000}), "text", "more than 16384 characters"),
        ('{"type": "session.config", "voice": "nobody"}', "voice", "'nobody' is not known here"),
        ('{"type": "session.config", "speed": 9}', "speed", "speed 9 must be"),
        ('{"type": "session.config", "response_format": "ogg"}', "response_format", "'ogg' is none of"),
        ('{"type": "session.config", "model": "other"}', "model", "'other' is not served here"),
        ('{"type": "session.config", "ref_audio": "%%%"}', "ref_audio", "no base64"),
    ],
)
def test_a_bad_message_is_an_error_that_names_the_field_and_the_session_goes_on(server, said, param, words):
    with session(server) as client:
        client.socket.send(said)
        error = client.hear()
        assert error["type"] == "error"
        assert error["error"]["param"] == param
        assert words in error["message"] == error["error"]["message"]
        client.say("input.done")
        assert client.hear() == {"type": "session.done", "total_sentences": 0}


def test_what_comes_at_the_wrong_time_is_an_error_and_changes_nothing(server):
    with session(server) as client:
        client.say("session.config", response_format="pcm")
        client.say("input.text", text=LONG)
        client.until("audio.start")
        client.say("session.config", voice="alloy")
        assert client.until("error")[0][-1]["error"]["param"] == "type"
        client.say("input.done")
        client.say("input.text", text="more")
        events, _ = client.until("session.done")
        assert "error" in kinds(events)
        assert kinds(events)[-2:] == ["audio.done", "session.done"]


def test_a_text_that_cannot_be_spoken_is_an_error_and_no_audio(server):
    with session(server) as client:
        client.say("input.text", text="!!! \U0001f600")
        client.say("input.done")
        events, audio = client.until("session.done")
    assert kinds(events) == ["error", "session.done"]
    assert (events[0]["error"]["code"], audio) == ("empty_input", b"")


def test_a_recording_in_the_configuration_is_the_voice(server, monkeypatch):
    requests = []

    async def noted(request):
        requests.append(request)
        raise Refused("QueueFull", 1.0)

    monkeypatch.setattr(server.engine.service, "dictate", noted)
    with session(server) as client:
        client.say("session.config", ref_audio=base64.b64encode(RECORDING).decode(), speed=1.5, language="en")
        client.say("input.text", text="Hello.")
        assert client.hear()["type"] == "error"
    (request,) = requests
    assert len(request.voice.prompt_tokens) > 50
    assert (request.speed, request.language) == (1.5, "en")


@pytest.mark.parametrize("when", ["before", "in the queue"])
def test_a_full_worker_says_when_to_come_back_and_closes_with_1013(server, monkeypatch, when):
    before = server.outcomes("refused")
    if when == "before":
        monkeypatch.setattr(server.engine.service, "would_refuse", lambda *_: Refused("QueueFull", 2.4))
    else:
        monkeypatch.setattr(server.engine.service, "dictate", scripted(Refused("QueueFull", 2.4)))
    with session(server) as client:
        client.say("input.text", text="Hello there.")
        error = client.hear()
        assert (error["error"]["code"], error["retry_after"]) == ("rate_limit_exceeded", 3)
        assert client.closed() == 1013
    assert server.outcomes("refused") == before + 1


def scripted(*items: object, pause: float = 0.0):
    """What the engine does instead of speaking."""

    async def dictate(request: object) -> Dictation:
        async def add(piece: str, complete: bool) -> None:
            pass

        async def speak() -> None:
            for item in items:
                await asyncio.sleep(pause)
                stream.put(item)

        def cancel() -> None:
            speaking.cancel()

        stream = Dictation(cancel, add)
        speaking = asyncio.create_task(speak())
        return stream

    return dictate


def test_a_failure_after_the_first_audio_never_looks_like_success(server, monkeypatch):
    failing = scripted(np.zeros(2400, np.float32), SynthesisFailed("the device went away"))
    monkeypatch.setattr(server.engine.service, "dictate", failing)
    before = server.outcomes("interrupted")
    with session(server) as client:
        client.say("input.text", text="Hello there.")
        events, _ = client.until("error")
        assert kinds(events) == ["audio.start", "error"]
        assert "device went away" in events[-1]["message"]
        assert client.closed() == 1011
    assert server.outcomes("interrupted") == before + 1


def test_a_client_that_reads_nothing_is_cut(own_server, monkeypatch):  # noqa: F811
    server = own_server(write_stall_seconds=0.3)
    second = np.zeros(24000, np.float32)
    monkeypatch.setattr(server.engine.service, "dictate", scripted(*[second] * 400))
    said = b'{"type": "input.text", "text": "Hello there."}'
    with socket.create_connection(("127.0.0.1", server.server.port)) as silent:
        head = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        silent.sendall(f"GET /v1/audio/speech/stream HTTP/1.1\r\nHost: a\r\n{head}\r\n".encode())
        assert silent.recv(4096).startswith(b"HTTP/1.1 101")
        silent.sendall(bytes([0x81, 0x80 | len(said), 0, 0, 0, 0]) + said)  # a text message, masked with zeros
        eventually(lambda: server.outcomes("cancelled") == 1, seconds=15)
        eventually(lambda: not server.server.server_state.connections, seconds=15)
    server.end()


def test_sessions_come_to_an_end_in_time_and_what_was_written_is_spoken(own_server):  # noqa: F811
    server = own_server(session_idle_seconds=0.5)
    with session(server) as client:
        began = time.monotonic()
        error = client.hear()
        assert (error["type"], error["error"]["code"]) == ("error", "session_idle")
        assert client.closed() == 1000
        assert 0.4 < time.monotonic() - began < 4
    with session(server) as client:
        client.say("input.text", text="Hello there, this has no")
        events, audio = client.until("error")
        assert kinds(events) == ["audio.start", "audio.done", "session.done", "error"]
        assert audio
    server.end()


def test_a_session_has_a_longest_time(own_server):  # noqa: F811
    server = own_server(session_seconds=1)
    with session(server) as client:
        client.say("input.text", text="Hello there. This")
        events, audio = client.until("error")
        assert kinds(events) == ["audio.start", "audio.done", "session.done", "error"]
        assert events[-1]["error"]["code"] == "session_expired"
        assert audio
        assert client.closed() == 1000
    server.end()


def test_a_draining_worker_finishes_the_text_that_it_has_and_takes_no_more(own_server):  # noqa: F811
    server = own_server()
    with session(server) as client, session(server) as idle:
        client.say("session.config", response_format="pcm")
        client.say("input.text", text="Hello there, how are you? And this has no end")
        client.until("audio.start")
        server.server.terminate()
        events, audio = client.until("error")
        assert kinds(events) == ["audio.done", "session.done", "error"]
        assert events[-1]["error"]["code"] == "draining"
        assert events[-1]["retry_after"] >= 1
        assert len(audio) / 2 > 0.5 * 24000
        assert client.closed() == 1012
        assert idle.closed() == 1012
    server.thread.join(20)
    assert not server.thread.is_alive()


def test_there_are_only_so_many_sessions(server, monkeypatch):
    monkeypatch.setattr(route, "MAX_SESSIONS", 1)
    with session(server) as one, session(server) as two:
        assert two.hear()["error"]["code"] == "rate_limit_exceeded"
        assert two.closed() == 1013
        one.say("input.done")
        assert one.hear()["type"] == "session.done"


def test_a_page_of_another_site_gets_no_session(server):
    foreign = httpx.get(
        server.base + "/v1/audio/speech/stream", headers=UPGRADE | {"Origin": "http://elsewhere.example"}
    )
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "foreign_origin")
    with session(server, Origin=server.base) as own:
        own.say("input.done")
        assert own.hear()["type"] == "session.done"
