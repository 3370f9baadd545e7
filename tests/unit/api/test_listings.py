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


METRICS = (
    'requests_total{outcome="failed"}',
    'requests_total{outcome="refused"}',
    "streams_running",
    "streams_queued",
    "gpu_load",
    "demand",
    'capacity{from="Measured"}',
    "first_audio_seconds_count",
    "rtf_count",
    "audio_seconds_total",
    "playback_gaps_total",
    "llm_batches_total",
    "llm_rows_total",
    "flow_batches_total",
    "flow_rows_total",
    "gpu_memory",
    'out_of_memory_steps_total{step="halve"}',
    "not_finite_total",
    "engine_restarts_total",
    "failed_batches_total",
    "model_load_seconds",
    "draining",
)
"""What dashboards and alerts are made of."""


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_there_from_the_start(server, name):
    assert server.metric(f"cosyvoice_{name}") >= 0


def test_the_engines_batches_are_counted(server):
    assert server.metric("cosyvoice_llm_batches_total") > 0
    assert server.metric("cosyvoice_model_load_seconds") > 0


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
