"""What an Event says, and how loudly."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.cluster.events import Events

SERVICE = {"metadata": {"namespace": "n", "name": "s", "uid": "u"}}


async def sent(monkeypatch: pytest.MonkeyPatch, **condition: str) -> dict[str, Any]:
    server = ApiServer(Configuration())
    bodies: list[dict[str, Any]] = []

    async def take(*_: Any, body: dict[str, Any]) -> None:
        bodies.append(body)

    monkeypatch.setattr(server, "request", take)
    await Events(server, "me")._send(SERVICE, {"message": "", **condition})
    return bodies[0]


async def test_a_long_note_is_cut_by_bytes_between_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"type": "Accepted", "status": "False", "reason": "Refused", "message": "x" + "\u58f0" * 1000}
    note = (await sent(monkeypatch, **refused))["note"]
    assert len(note.encode()) == 1024
    assert note == "x" + "\u58f0" * 341


@pytest.mark.parametrize(
    ("kind", "status", "reason", "loudness"),
    [
        ("ScalingActive", "False", "Disabled", "Normal"),
        ("ScalingActive", "False", "FailedGetObjectMetric", "Warning"),
        ("RolloutBlocked", "True", "Unschedulable", "Warning"),
        ("RolloutBlocked", "False", "NotBlocked", "Normal"),
    ],
)
async def test_what_the_user_asked_for_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, kind: str, status: str, reason: str, loudness: str
) -> None:
    assert (await sent(monkeypatch, type=kind, status=status, reason=reason))["type"] == loudness
