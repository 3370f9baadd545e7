"""What clients read before they speak."""

import openai
import pytest


def test_the_openai_client_lists_and_retrieves_the_model(server):
    client = openai.OpenAI(base_url=server.base + "/v1", api_key="unused")
    assert [model.id for model in client.models.list()] == ["Tiny"]
    assert client.models.retrieve("tiny").id == "Tiny"


def test_an_unknown_model_is_a_404_that_names_the_one_served(server):
    response = server.get("/v1/models/other")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "model 'other' is not served here; use 'Tiny'"


def test_voices_have_ids_and_names_and_include_openais(server):
    voices = server.get("/v1/audio/voices").json()["voices"]
    names = [voice["name"] for voice in voices]
    assert names[0] == "tiny_spk"
    assert "alloy" in names
    assert all(voice["id"] == voice["name"] for voice in voices)


def test_the_openapi_document_describes_speech_and_promises_no_422(server):
    document = server.get("/openapi.json").json()
    assert "requestBody" in document["paths"]["/v1/audio/speech"]["post"]
    assert "422" not in str(document)


def test_metrics_have_every_outcome_from_the_start_and_the_engines_readings(server):
    text = server.get("/metrics").text
    for name in ("requests_total", "demand", "capacity", "gpu_load", "first_audio_seconds", "rtf", "streams_running"):
        assert f"cosyvoice_{name}" in text
    assert 'cosyvoice_requests_total{outcome="failed"}' in text
    assert 'cosyvoice_capacity{from="Measured"}' in text
    assert 'cosyvoice_out_of_memory_steps_total{step="halve"} 0.0' in text
    assert "cosyvoice_not_finite_total 0.0" in text
    assert server.metric("cosyvoice_llm_batches_total") > 0


def test_the_playground_is_one_page_that_loads_nothing_from_elsewhere(server):
    response = server.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert 'fetch("v1/audio/speech"' in response.text
    assert '"Content-Type": "application/json"' in response.text  # without it a browser's request is a 415
    assert "http" not in response.text
    assert "default-src 'none'" in response.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_there_is_no_page_that_loads_scripts_from_elsewhere(server, path):
    assert server.get(path).status_code == 404
