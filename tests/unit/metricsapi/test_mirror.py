"""The local copy of cluster objects, against an HTTP server that answers as an API server does in its bad moments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.cluster.mirror import Mirror

PODS = "/api/v1/pods"


class Cluster:
    """Answers lists with `objects` and plays one script of events for each watch; the last watch stays open."""

    def __init__(self, *objects: dict[str, Any], watches: list[list[dict[str, Any] | int]]) -> None:
        self.objects = list(objects)
        self.watches = watches
        self.lists: list[dict[str, str]] = []
        self.watched: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists.append(dict(request.query))
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": self.objects})
        self.watched.append(dict(request.query))
        script = self.watches.pop(0) if self.watches else []
        if script and isinstance(script[0], int):
            return web.json_response({"reason": "Expired", "message": "too old"}, status=script[0])
        response = web.StreamResponse()
        await response.prepare(request)
        for event in script:
            await response.write(json.dumps(event).encode() + b"\n")
        if not self.watches:
            await asyncio.sleep(60)
        return response


def pod(name: str, version: str = "1", **extra: Any) -> dict[str, Any]:
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": version, "managedFields": [{}]}
    return {"metadata": meta, **extra}


def event(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": item}


@asynccontextmanager
async def mirror(cluster: Cluster, **options: Any) -> AsyncIterator[tuple[Mirror, Callable[[str], Any]]]:
    """A running mirror of the cluster's pods, and what waits until its names are as given."""
    app = web.Application()
    app.router.add_get(PODS, cluster.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    changed = asyncio.Event()
    async with ApiServer(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")) as server:
        made = Mirror(server, PODS, on_change=changed.set, **options)

        async def shows(names: str) -> None:
            async with asyncio.timeout(5):
                while " ".join(sorted(item["metadata"]["name"] for item in made.objects.values())) != names:
                    await changed.wait()
                    changed.clear()

        task = asyncio.create_task(made.run())
        try:
            yield made, shows
        finally:
            task.cancel()
    await runner.cleanup()


async def until(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 5 s")


async def test_it_lists_once_and_then_follows_the_changes() -> None:
    events = [event("ADDED", pod("c", "11")), event("DELETED", pod("a", "12")), event("MODIFIED", pod("b", "13", x=1))]
    cluster = Cluster(pod("a"), pod("b"), watches=[events])
    async with mirror(cluster) as (made, shows):
        await shows("b c")
        await until(lambda: "x" in made.objects["uid-b"])
    assert (len(cluster.lists), cluster.watched[0]["resourceVersion"]) == (1, "10")


async def test_it_asks_for_what_was_selected_and_for_bookmarks() -> None:
    cluster = Cluster(pod("a"), watches=[[]])
    async with mirror(cluster, label_selector="a=b", field_selector="metadata.name=a") as (_, shows):
        await shows("a")
        await until(lambda: bool(cluster.watched))
    selected = {"labelSelector": "a=b", "fieldSelector": "metadata.name=a"}
    assert cluster.lists[0] == selected
    assert selected.items() <= cluster.watched[0].items()
    assert cluster.watched[0]["allowWatchBookmarks"] == "true"


async def test_a_watch_that_ends_goes_on_where_it_was_by_its_last_bookmark() -> None:
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "40"}})
    cluster = Cluster(pod("a"), watches=[[event("ADDED", pod("b", "11")), bookmark], [event("ADDED", pod("c", "41"))]])
    async with mirror(cluster) as (_, shows):
        await shows("a b c")
    assert [query["resourceVersion"] for query in cluster.watched] == ["10", "40"]
    assert len(cluster.lists) == 1


async def test_a_version_that_is_too_old_leads_to_a_new_list() -> None:
    gone = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    cluster = Cluster(pod("a"), watches=[[gone], [410], []])
    async with mirror(cluster) as (_, shows):
        await shows("a")
        cluster.objects = [pod("b")]
        await shows("b")
        await until(lambda: len(cluster.lists) == 3)


async def test_the_copy_is_kept_while_the_api_server_fails_and_caught_up_after() -> None:
    cluster = Cluster(pod("a"), watches=[[500], []])
    async with mirror(cluster) as (made, shows):
        await shows("a")
        held = made.objects  # whoever holds it sees what comes later
        cluster.objects = [pod("b")]
        await shows("b")
    assert list(held) == ["uid-b"]


async def test_a_watch_that_falls_silent_is_dead_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosyvoice_operator.cluster.mirror.SILENCE_SECONDS", 0.2)
    cluster = Cluster(pod("a"), watches=[])  # the watch stays open and says nothing
    async with mirror(cluster) as (made, shows):
        await shows("a")
        cluster.objects = [pod("b")]
        await shows("b")
        assert made.silent_seconds < 5


async def test_objects_are_found_by_their_key_as_it_is_now() -> None:
    moved = [event("MODIFIED", pod("b", "11", key=2)), event("DELETED", pod("c", "12")), event("ADDED", pod("d", "13"))]
    cluster = Cluster(pod("a", key=1), pod("b", key=1), pod("c", key=3), watches=[moved])
    async with mirror(cluster, key=lambda item: item.get("key")) as (made, shows):
        await shows("a b d")

    def names(key: int) -> list[str]:
        return [item["metadata"]["name"] for item in made.of(key)]

    assert (names(1), names(2), names(3)) == (["a"], ["b"], [])


async def test_of_an_object_is_kept_what_is_asked_for() -> None:
    def slim(item: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": item["metadata"], "kept": item["kept"]}

    cluster = Cluster(pod("a", kept=1, bulk=2), watches=[[event("ADDED", pod("b", "11", kept=1, bulk=2))]])
    async with mirror(cluster, slim=slim) as (made, shows):
        await shows("a b")
    assert all(set(item) == {"metadata", "kept"} for item in made.objects.values())


async def test_what_no_decision_reads_is_dropped() -> None:
    async with mirror(Cluster(pod("a"), watches=[[]])) as (made, shows):
        await shows("a")
    assert "managedFields" not in made.objects["uid-a"]["metadata"]
