"""CosyVoice's own HTTP API, as its own client calls it: forms by GET or POST, raw samples back."""

import httpx
import numpy as np
import pytest

from tests.unit.api.test_speech import RECORDING, WORDS

TEXT = {"tts_text": "hello there"}
VOICE = {"spk_id": "tiny_spk"}
HOW = {"instruct_text": "be glad"}
SAID = {"prompt_text": WORDS}
RECORDED = {"prompt_wav": ("prompt_wav", RECORDING, "application/octet-stream")}

MODES = {
    "sft": (TEXT | VOICE, None),
    "zero_shot": (TEXT | SAID, RECORDED),
    "cross_lingual": (TEXT, RECORDED),
    "instruct": (TEXT | VOICE | HOW, None),
    "instruct2": (TEXT | HOW, RECORDED),
}


def ask(server, mode, method="POST", data=None, files=None, **more):
    return httpx.request(method, f"{server.base}/inference_{mode}", data=data, files=files, timeout=60, **more)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_reaches_the_engine_with_all_of_its_form(server, script, mode, method):
    data, files = MODES[mode]
    response = ask(server, mode, method, data, files)
    assert response.status_code == 200
    assert len(response.content) == 48000
    request = script.requests[-1]
    assert (request.text, request.streaming) == ("hello there", False)
    assert request.instruct == ("be glad" if "instruct_text" in data else "")
    assert (request.voice.name == "tiny_spk") == ("spk_id" in data)
    assert request.voice.prompt_text == (WORDS.strip() if mode == "zero_shot" else "")
    assert (len(request.voice.prompt_tokens) > 0) == (files is not None)


def test_the_samples_are_those_of_openais_route(server):
    own = ask(server, "sft", data=TEXT | VOICE)
    assert own.headers["content-type"] == "audio/pcm"
    assert own.headers["x-sample-rate"] == "24000"
    samples = np.frombuffer(own.content, "<i2")
    assert len(samples) > 0.3 * 24000
    assert np.abs(samples).max() > 300


@pytest.mark.parametrize("mode", MODES)
def test_every_field_is_required_and_the_missing_one_is_named(server, script, mode):
    data, files = MODES[mode]
    for missing in (*data, *(files or ())):
        response = ask(
            server,
            mode,
            data={name: value for name, value in data.items() if name != missing},
            files=files if missing != "prompt_wav" else {"other": b""},
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == missing
        assert f"{missing} is missing" in response.json()["error"]["message"]
    assert not script.requests


@pytest.mark.parametrize(
    ("mode", "change", "param", "words"),
    [
        ("sft", {"spk_id": "nobody"}, "spk_id", "spk_id 'nobody' is not known here; use one of tiny_spk"),
        ("sft", {"tts_text": "!!!"}, "tts_text", "tts_text holds nothing to say"),
        ("sft", {"tts_text": "a" * 5000}, "tts_text", "tts_text has 5000 characters"),
        ("instruct", {"instruct_text": "a" * 5000}, "instruct_text", "instruct_text String must have at most 4096"),
    ],
)
def test_a_wrong_field_is_a_400_by_its_name_in_that_api(server, script, mode, change, param, words):
    response = ask(server, mode, data=MODES[mode][0] | change)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["message"].startswith(words)


def test_a_recording_that_is_none_is_a_400_for_prompt_wav(server, script):
    response = ask(server, "cross_lingual", data=TEXT, files={"prompt_wav": b"no audio"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt_wav"
    assert response.json()["error"]["message"].startswith("prompt_wav: the recording cannot be decoded")


def test_what_is_no_form_is_a_400_in_the_one_form(server):
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    for response in (
        httpx.post(f"{server.base}/inference_sft", json=TEXT | VOICE),
        httpx.post(f"{server.base}/inference_sft", content=b"--y\r\nnonsense", headers=broken),
        httpx.get(f"{server.base}/inference_sft"),
    ):
        assert response.status_code == 400
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_page_of_another_site_cannot_send_the_form(server, script):
    foreign = ask(server, "sft", data=TEXT | VOICE, headers={"Origin": "http://elsewhere.example"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "foreign_origin")
    assert ask(server, "sft", data=TEXT | VOICE, headers={"Origin": server.base}).status_code == 200
