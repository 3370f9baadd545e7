"""Scraping of real HTTP servers: what counts as an answer, and what a round costs."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from cosyvoice_contract import PATH_LOAD
from cosyvoice_operator.cluster.worker_load import MAX_REPORT_BYTES, load_session, read_load
from cosyvoice_operator.metricsapi.scrape import Scraper, parse_report
from cosyvoice_operator.metricsapi.telemetry import Telemetry

REPORT = {
    "pool_card": "T4",
    "demand": 50.0,
    "capacity": 100.0,
    "capacity_from": "Measured",
    "gpu_load": 0.5,
    "gpu_utilization": None,
    "gpu_memory": 0.25,
    "running": 3,
    "queued": 0,
    "draining": False,
}
addresses = (f"127.11.0.{n}" for n in itertools.count(1))

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def pod(ip: str, *, started: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": f"w-{ip}", "namespace": "speech", "uid": ip},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "containerStatuses": [{"name": "worker", "started": started}],
        },
    }


@asynccontextmanager
async def worker(answer: Answer, ip: str, port: int = 0) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get(PATH_LOAD, answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, ip, port).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def reports(_: web.Request) -> web.Response:
    return web.json_response(REPORT)


def scraper(
    pods: list[dict[str, Any]],
    port: int,
    *,
    timeout: float = 5,
    interval: float = 5,
    concurrency: int = 16,
    changed: asyncio.Event | None = None,
) -> tuple[Scraper, Telemetry]:
    telemetry = Telemetry()
    made = Scraper(
        lambda: pods,
        changed or asyncio.Event(),
        telemetry,
        port=port,
        interval=interval,
        timeout=timeout,
        concurrency=concurrency,
    )
    return made, telemetry


def scrapes(telemetry: Telemetry, outcome: str) -> float:
    return telemetry.registry.get_sample_value("cosyvoice_metrics_api_scrapes_total", {"outcome": outcome}) or 0


async def test_a_round_keeps_the_reading_of_every_worker_that_answers() -> None:
    ip = next(addresses)
    async with worker(reports, ip) as port, aiohttp.ClientSession() as session:
        made, telemetry = scraper([pod(ip)], port)
        await made.round(session)
    assert made.readings[ip].values == {"gpu_load": 0.5, "gpu_utilization": None, "gpu_memory": 0.25}
    assert scrapes(telemetry, "ok") == 1


async def test_pods_that_do_not_count_are_not_asked() -> None:
    ip = next(addresses)
    async with worker(reports, ip) as port, aiohttp.ClientSession() as session:
        made, telemetry = scraper([pod(ip, started=False)], port)
        await made.round(session)
    assert (dict(made.readings), scrapes(telemetry, "ok")) == ({}, 0)


async def test_the_last_reading_stays_when_a_worker_falls_silent_and_goes_with_its_pod() -> None:
    ip = next(addresses)
    pods = [pod(ip)]
    async with aiohttp.ClientSession() as session:
        async with worker(reports, ip) as port:
            made, telemetry = scraper(pods, port)
            await made.round(session)
        await made.round(session)
        assert (set(made.readings), scrapes(telemetry, "unreachable")) == ({ip}, 1)
        pods.clear()
        await made.round(session)
        assert dict(made.readings) == {}


async def test_a_worker_that_comes_between_two_rounds_is_asked_at_once_and_only_once() -> None:
    old, new = next(addresses), next(addresses)
    async with (
        worker(reports, old) as port,
        worker(reports, new, port),
        aiohttp.ClientSession() as session,
    ):
        pods = [pod(old)]
        made, telemetry = scraper(pods, port)
        await made.round(session)
        pods.append(pod(new))
        await made.ask_new(session)
        await made.ask_new(session)
    assert set(made.readings) == {old, new}
    assert scrapes(telemetry, "ok") == 2


async def test_a_pod_that_changes_wakes_a_running_scraper() -> None:
    ip = next(addresses)
    asked, changed = asyncio.Event(), asyncio.Event()

    async def notices(_: web.Request) -> web.Response:
        asked.set()
        return web.json_response(REPORT)

    async with worker(notices, ip) as port:
        pods: list[dict[str, Any]] = []
        made, _ = scraper(pods, port, changed=changed)
        running = asyncio.create_task(made.run())
        await made.first_round.wait()
        pods.append(pod(ip))
        changed.set()
        await asyncio.wait_for(asked.wait(), 1)  # the interval is five seconds
        running.cancel()


async def hangs(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.json_response(REPORT)


async def loading(_: web.Request) -> web.Response:
    return web.Response(status=503)


async def nonsense(_: web.Request) -> web.Response:
    return web.json_response(REPORT | {"gpu_load": -1})


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * MAX_REPORT_BYTES)


async def redirects(_: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (hangs, "timeout"),
        (loading, "http_error"),
        (nonsense, "malformed"),
        (endless, "malformed"),
        (redirects, "http_error"),
    ],
)
async def test_what_is_no_reading_is_no_zero(answer: Answer, outcome: str) -> None:
    ip = next(addresses)
    async with worker(answer, ip) as port, aiohttp.ClientSession() as session:
        made, telemetry = scraper([pod(ip)], port, timeout=0.3 if answer is hangs else 5)
        await made.round(session)
    assert (dict(made.readings), scrapes(telemetry, outcome)) == ({}, 1)


async def test_a_worker_that_hangs_delays_no_other() -> None:
    slow, quick = next(addresses), next(addresses)
    async with (
        worker(hangs, slow) as port,
        worker(reports, quick, port),
        aiohttp.ClientSession() as session,
    ):
        made, _ = scraper([pod(slow), pod(quick)], port, timeout=0.5, concurrency=2)
        async with asyncio.timeout(5):
            await made.round(session)
    assert set(made.readings) == {quick}


def fleet(count: int, net: str) -> list[dict[str, Any]]:
    return [pod(f"{net}.{n // 250}.{n % 250 + 1}") for n in range(count)]


@asynccontextmanager
async def many_workers(hanging: set[str]) -> AsyncIterator[int]:
    """One server on every loopback address: as many workers as there are addresses. Those in `hanging` never answer."""
    body = json.dumps(REPORT)
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if writer.get_extra_info("sockname")[0] in hanging:
            await reader.read()  # until the client gives up
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0, backlog=512)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_round_of_two_thousand_workers_fits_into_half_its_interval() -> None:
    pods = fleet(2000, "127.31")
    async with many_workers(set()) as port, aiohttp.ClientSession(connector=force_close()) as session:
        made, telemetry = scraper(pods, port, timeout=5, interval=30, concurrency=64)
        started = time.process_time()  # of this process alone, and of its workers: the machine may be busy with others
        await made.round(session)
        assert time.process_time() - started < 2.5
    assert (len(made.readings), scrapes(telemetry, "ok")) == (2000, 2000)


async def test_workers_that_hang_take_nothing_from_the_freshness_of_the_others() -> None:
    pods = fleet(60, "127.32")
    hanging = {one["status"]["podIP"] for one in pods[:40]}
    random.Random(0).shuffle(pods)
    async with many_workers(hanging) as port, aiohttp.ClientSession(connector=force_close()) as session:
        # All of the hanging ones together take 40 * 0.2 / 4 = 2 s, twice the interval.
        made, telemetry = scraper(pods, port, timeout=0.2, interval=1, concurrency=4)
        for _ in range(4):
            async with asyncio.timeout(2):
                await made.round(session)
        before = time.time()
        await made.round(session)
        fresh = {uid for uid, reading in made.readings.items() if reading.taken_at >= before}
    assert fresh == {one["metadata"]["uid"] for one in pods} - hanging
    assert scrapes(telemetry, "timeout") >= 40  # and every hanging one had its turn


def force_close() -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(force_close=True, limit=0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpu_load": None}, "gpu_load"),
        ({"gpu_load": "NaN"}, "gpu_load"),
        ({"gpu_memory": float("inf")}, "gpu_memory"),
        ({"gpu_utilization": -0.1}, "gpu_utilization"),
    ],
)
def test_a_malformed_report_is_refused_by_the_name_of_its_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"not a load report: {named}"):
        parse_report(json.dumps(REPORT | change).encode(), taken_at=0)


@pytest.mark.parametrize("body", [b"", b"ok", b"[]", b"{}"])
def test_what_is_no_load_report_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a load report"):
        parse_report(body, taken_at=0)


async def test_a_report_that_comes_in_pieces_is_read_to_its_end() -> None:
    async def in_pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for half in (json.dumps(REPORT)[:40], json.dumps(REPORT)[40:]):
            await response.write(half.encode())
            await asyncio.sleep(0.05)
        return response

    ip = next(addresses)
    async with worker(in_pieces, ip) as port, load_session(1) as session:
        assert json.loads(await read_load(session, ip, port, timeout=5)) == REPORT
