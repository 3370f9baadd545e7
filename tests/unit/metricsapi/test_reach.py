"""Only an answer from behind the own Service, under the own certificate, counts as having reached oneself."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from aiohttp import web

from cosyvoice_operator.metricsapi.certificate import ServingIdentity, renewed, server_context
from cosyvoice_operator.metricsapi.reach import Unreachable, reach

NAME = "metrics.speech.svc"
IDENTITY = renewed(None, [NAME], datetime.now(UTC))


async def serve(identity: ServingIdentity) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    context: ssl.SSLContext = server_context(identity, identity.ca.certificate.decode())
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    return runner, f"https://127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    runner, url = await serve(IDENTITY)
    yield url
    await runner.cleanup()


async def test_any_answer_of_its_own_will_do(url: str) -> None:
    await reach(url, NAME, IDENTITY.ca_bundle)  # it is a 404


async def test_another_certificate_is_somebody_else(url: str) -> None:
    stranger = renewed(None, [NAME], datetime.now(UTC))
    with pytest.raises(Unreachable, match="does not lead to it"):
        await reach(url, NAME, stranger.ca_bundle)
    with pytest.raises(Unreachable, match="does not lead to it"):
        await reach(url, "other.speech.svc", IDENTITY.ca_bundle)


async def test_nobody_there_is_said_with_the_address(url: str) -> None:
    with pytest.raises(Unreachable, match=r"https://127\.0\.0\.1:1: .*docs/metrics-api\.md"):
        await reach("https://127.0.0.1:1", NAME, IDENTITY.ca_bundle)
