"""What a worker writes about a request: JSON with its id, and not a word of what was spoken."""

import json
import logging
import sys

import httpx

from cosyvoice_worker.json_log import JsonFormatter
from tests.unit.api.conftest import eventually

SECRET = "my secret word"


def spoken(records, request_id):
    return [r for r in records if getattr(r, "request_id", "") == request_id and r.getMessage() == "spoken"]


def test_each_request_is_one_line_with_its_id_and_without_its_text(server, caplog):
    caplog.set_level(logging.INFO)
    httpx.post(
        server.base + "/v1/audio/speech",
        json={"input": SECRET, "response_format": "pcm", "instructions": SECRET},
        headers={"X-Request-Id": "mine-1"},
        timeout=60,
    )
    eventually(lambda: spoken(caplog.records, "mine-1"))
    lines = [JsonFormatter().format(record) for record in caplog.records]
    line = json.loads(next(line for line in lines if "mine-1" in line))
    assert (line["request_id"], line["outcome"], line["level"]) == ("mine-1", "completed", "info")
    assert line["audio_seconds"] > 0
    assert "secret" not in "".join(lines)


def test_what_is_refused_is_logged_with_its_id_and_the_reason(server, caplog):
    caplog.set_level(logging.INFO)
    refused = httpx.post(
        server.base + "/v1/audio/speech", json={"input": "...", "voice": SECRET}, headers={"X-Request-Id": "mine-2"}
    )
    assert refused.status_code == 400
    record = next(r for r in caplog.records if getattr(r, "request_id", "") == "mine-2")
    assert record.status == 400
    assert "nothing to say" in record.reason


def test_a_fault_is_logged_as_json_with_its_traceback():
    try:
        raise ValueError("a bug")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "levelname": "ERROR", "exc_info": sys.exc_info()})
    line = json.loads(JsonFormatter().format(record))
    assert line["level"] == "error"
    assert "ValueError: a bug" in line["exception"]
