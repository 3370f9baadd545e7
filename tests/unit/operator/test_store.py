"""What the store keeps of the watches."""

from __future__ import annotations

from typing import Any

from cosyvoice_contract import LABEL_SERVICE
from cosyvoice_operator.cluster.kinds import DEPLOYMENT, POD
from cosyvoice_operator.cluster.store import Store

OURS = {"manager": "cosyvoice-operator", "operation": "Apply"}


def raw(version: int, uid: str = "u1", owned: Any = None, **more: Any) -> dict[str, Any]:
    managed = [{**OURS, "fieldsV1": owned or {"f:spec": {"f:template": {}}}}]
    metadata = {"name": "d", "namespace": "n", "uid": uid, "resourceVersion": str(version), "generation": 1}
    return {"metadata": {**metadata, "labels": {LABEL_SERVICE: "s"}, "managedFields": managed}, "spec": {}, **more}


def test_news_is_what_decisions_look_at() -> None:
    store = Store()
    assert store.put(DEPLOYMENT, raw(1))
    assert not store.put(DEPLOYMENT, raw(2)), "only the version is another"
    assert store.put(DEPLOYMENT, raw(3, status={"readyReplicas": 1}))


def test_a_late_event_does_not_undo_a_newer_answer() -> None:
    store = Store()
    store.put(DEPLOYMENT, raw(5, status={"readyReplicas": 1}))
    assert not store.put(DEPLOYMENT, raw(4))
    kept = store.get(DEPLOYMENT, "n", "d")
    assert kept is not None
    assert kept["status"] == {"readyReplicas": 1}


def test_a_field_that_somebody_took_over_shows() -> None:
    store = Store()
    store.put(DEPLOYMENT, raw(1, owned={"f:spec": {"f:template": {}, "f:strategy": {}}}))
    before = store.get(DEPLOYMENT, "n", "d")
    assert store.put(DEPLOYMENT, raw(2, owned={"f:spec": {"f:template": {}}}))
    after = store.get(DEPLOYMENT, "n", "d")
    assert before is not None
    assert after is not None
    assert before["owned"] != after["owned"]


def test_an_object_that_is_relabelled_is_found_at_its_new_service_only() -> None:
    store = Store()
    store.put(DEPLOYMENT, raw(1))
    moved = raw(2)
    moved["metadata"]["labels"] = {LABEL_SERVICE: "t"}
    store.put(DEPLOYMENT, moved)
    assert store.of_service(("n", "s"), DEPLOYMENT) == []
    assert [found["metadata"]["name"] for found in store.of_service(("n", "t"), DEPLOYMENT)] == ["d"]
    store.remove(DEPLOYMENT, moved)
    assert store.of_service(("n", "t"), DEPLOYMENT) == []


def test_objects_are_found_by_their_service_until_they_are_deleted() -> None:
    store = Store()
    store.put(DEPLOYMENT, raw(1))
    assert [found["metadata"]["name"] for found in store.of_service(("n", "s"), DEPLOYMENT)] == ["d"]
    assert store.of_service(("n", "s"), POD) == []
    store.remove(DEPLOYMENT, raw(9, uid="another of that name"))
    assert store.of_service(("n", "s"), DEPLOYMENT), "the deletion was of an earlier one"
    store.remove(DEPLOYMENT, raw(9))
    assert store.of_service(("n", "s"), DEPLOYMENT) == []
