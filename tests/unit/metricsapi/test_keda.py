"""What KEDA is told, and who counts as KEDA."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from cosyvoice_operator.metricsapi.aggregate import MetricUnavailable, Pool, Reading, Worker
from cosyvoice_operator.metricsapi.certificate import Pair, client_renewed, renewed, server_context
from cosyvoice_operator.metricsapi.keda import CLIENT_NAME, application
from cosyvoice_operator.metricsapi.telemetry import Telemetry

NAME = "metrics.speech.svc"
NOW = datetime.now(UTC)
IDENTITY = renewed(None, [NAME], NOW)
KEDA = client_renewed(None, IDENTITY.ca, CLIENT_NAME, NOW)


class Pools:
    """One pool `narrator` in `speech`; the API server is not heard in `deaf`."""

    def find(self, namespace: str, name: str) -> Pool | None:
        if namespace == "deaf":
            raise MetricUnavailable("heard nothing")
        if (namespace, name) != ("speech", "narrator"):
            return None
        now = time.time()
        load = {"gpu_load": 1.25, "gpu_utilization": None, "gpu_memory": 0.1}
        workers = [Worker(f"w{n}", Reading(now, load)) for n in range(2)]
        return Pool(namespace, name, 2, {"gpu_load": 0.8}, workers)

    async def select(self, namespace: str, label_selector: str) -> list[Pool]:
        raise NotImplementedError


@pytest.fixture
async def url() -> AsyncIterator[str]:
    runner = web.AppRunner(application(Pools(), Telemetry(), max_age=5))
    await runner.setup()
    context = server_context(IDENTITY, IDENTITY.ca_bundle.decode(), required=True)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}/v1/namespaces"
    await runner.cleanup()


async def get(url: str, tmp_path: Path, client: Pair | None = KEDA) -> tuple[int, Any]:
    context = ssl.create_default_context(cadata=IDENTITY.ca_bundle.decode())
    if client is not None:
        path = tmp_path / "client.pem"
        path.write_bytes(client.certificate + client.key)
        context.load_cert_chain(path)
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context, server_hostname=NAME) as answer:
        return answer.status, await answer.json()


async def test_a_metric_is_the_sum_over_the_workers(url: str, tmp_path: Path) -> None:
    assert await get(f"{url}/speech/deployments/narrator/gpu_load", tmp_path) == (200, {"gpu_load": 2.5})


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("speech/deployments/narrator/gpu_utilization", 404, "it has no GPU"),
        ("speech/deployments/other/gpu_load", 404, "namespace speech has no Deployment other"),
        ("speech/deployments/narrator/cpu", 404, "there is no metric 'cpu'"),
        ("deaf/deployments/narrator/gpu_load", 503, "heard nothing"),
    ],
)
async def test_what_is_missing_is_an_error_and_no_number(
    url: str, tmp_path: Path, path: str, status: int, said: str
) -> None:
    code, body = await get(f"{url}/{path}", tmp_path)
    assert code == status
    assert list(body) == ["error"]
    assert said in body["error"]


async def test_only_keda_is_answered(url: str, tmp_path: Path) -> None:
    path = f"{url}/speech/deployments/narrator/gpu_load"
    other = client_renewed(None, IDENTITY.ca, "somebody", NOW)
    assert await get(path, tmp_path, other) == (403, {"error": "you are not KEDA"})
    stranger = renewed(None, [NAME], NOW)
    for client in (None, client_renewed(None, stranger.ca, CLIENT_NAME, NOW), IDENTITY.serving):
        with pytest.raises(aiohttp.ClientError):
            await get(path, tmp_path, client)


def test_the_client_certificate_is_kept_until_a_third_of_its_life_is_left_or_the_ca_changes() -> None:
    assert client_renewed(KEDA, IDENTITY.ca, CLIENT_NAME, NOW + timedelta(days=59)) is KEDA
    assert client_renewed(KEDA, IDENTITY.ca, CLIENT_NAME, NOW + timedelta(days=61)) is not KEDA
    assert client_renewed(KEDA, renewed(None, [NAME], NOW).ca, CLIENT_NAME, NOW) is not KEDA
