"""Server-side apply of children: never takes over an object of somebody else's, never sends the same twice."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from cosyvoice_contract import GROUP
from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.service import KIND
from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.cluster.kinds import AUTOSCALER, BUDGET, COSYVOICE_SERVICE, DEPLOYMENT, Kind, Object, kind_of
from cosyvoice_operator.cluster.store import FIELD_MANAGER, ServiceKey, Store
from cosyvoice_operator.cluster.telemetry import APPLIES

SEED_MANAGER: Final = "cosyvoice-operator-seed"
"""Owns `spec.replicas` where the operator set it; it applies nothing else, so nothing is lost when others take over."""

_HASHED_NAMES: Final = (DEPLOYMENT, AUTOSCALER, BUDGET)
_APPLY: Final = "application/apply-patch+yaml"
_Key = tuple[Kind, str, str]


class Applier:
    """Brings children to what is desired, with as few requests as possible: none if all is as it was left."""

    def __init__(self, server: ApiServer, store: Store) -> None:
        self._server = server
        self._store = store
        self._sent: dict[_Key, tuple[str, str, str]] = {}
        """What the last apply sent and got: (uid, digest of the manifest, digest of the fields that it made ours)."""
        self._sent_status: dict[ServiceKey, str] = {}

    async def apply(self, manifest: Object, owner_uid: str) -> Object:
        """Apply one child and return it, trimmed. Raises SpecError(NameTaken) and ApiError."""
        kind = kind_of(manifest)
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        key = (kind, namespace, name)
        digest = _digest(manifest)
        live = self._store.get(*key)
        if live is None:
            answer = await self._create(kind, manifest, owner_uid)
        else:
            _check_owner(kind, live, owner_uid)
            if self._sent.get(key) == (live["metadata"]["uid"], digest, live["owned"]):
                return live
            answer = await self._update(kind, manifest, live)
        changed = live is None or int(answer["metadata"]["resourceVersion"]) != live["version"]
        APPLIES.labels(kind.name, str(changed).lower()).inc()
        applied = self._store.get(*key)
        assert applied is not None
        self._sent[key] = (applied["metadata"]["uid"], digest, applied["owned"])
        return applied

    async def set_replicas(self, deployment: Object, replicas: int) -> None:
        """Give a Deployment a number of workers, leaving every other field to whom it belongs."""
        metadata = {name: deployment["metadata"][name] for name in ("namespace", "name", "uid")}
        body = {
            "apiVersion": DEPLOYMENT.api_version,
            "kind": DEPLOYMENT.name,
            "metadata": metadata,
            "spec": {"replicas": replicas},
        }
        await self._patch(DEPLOYMENT, body, SEED_MANAGER, force=True)
        APPLIES.labels(DEPLOYMENT.name, "true").inc()

    async def prune(self, kind: Kind, child: Object) -> None:
        """Delete a child of ours that is no longer wanted; that it is gone already is no error."""
        metadata = child["metadata"]
        body = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": "Background"}
        try:
            await self._server.request("DELETE", kind.path(metadata["namespace"], metadata["name"]), body=body)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
        self._sent.pop((kind, metadata["namespace"], metadata["name"]), None)

    async def apply_status(self, live: Object, status: Object) -> bool:
        """Write the status where it says something new. True if it was sent."""
        key = (live["metadata"]["namespace"], live["metadata"]["name"])
        digest = _digest(status)
        if live["status"] == status or (self._sent_status.get(key) == digest and _covers(live["status"], status)):
            return False
        body = {
            "apiVersion": COSYVOICE_SERVICE.api_version,
            "kind": COSYVOICE_SERVICE.name,
            "metadata": {name: live["metadata"][name] for name in ("namespace", "name", "uid")},
            "status": status,
        }
        await self._patch(COSYVOICE_SERVICE, body, FIELD_MANAGER, force=True, subresource="/status")
        self._sent_status[key] = digest
        APPLIES.labels(COSYVOICE_SERVICE.name, "true").inc()
        return True

    def forget(self, service: ServiceKey) -> None:
        """The service is gone; its children go by garbage collection."""
        self._sent_status.pop(service, None)

    def forget_child(self, kind: Kind, namespace: str, name: str) -> None:
        self._sent.pop((kind, namespace, name), None)

    async def _create(self, kind: Kind, manifest: Object, owner_uid: str) -> Object:
        """Without force, a first write takes no field from anybody: an object of that name is a conflict.

        But for what bears the service's own name, which an object of the user's may have and say the same: there, what
        exists is asked for.
        """
        if kind not in _HASHED_NAMES and (found := await self._find(kind, manifest)) is not None:
            _check_owner(kind, found, owner_uid)
            return await self._update(kind, manifest, found)
        try:
            return await self._patch(kind, manifest, FIELD_MANAGER, force=False)
        except ApiError as error:
            # 422: the two do not merge into anything valid, e.g. because a selector never changes.
            if error.code not in (409, 422):
                raise
            refused = error
        found = await self._find(kind, manifest)
        if found is None:
            raise refused
        _check_owner(kind, found, owner_uid)
        return await self._update(kind, manifest, found)  # ours, but somebody took its label away

    async def _find(self, kind: Kind, manifest: Object) -> Object | None:
        """What the store need not know: it has only what bears our label."""
        path = kind.path(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        try:
            return await self._server.request("GET", path)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    async def _update(self, kind: Kind, manifest: Object, live: Object) -> Object:
        """With its uid: an object that somebody put in the place of ours is not touched."""
        body = {**manifest, "metadata": {**manifest["metadata"], "uid": live["metadata"]["uid"]}}
        return await self._patch(kind, body, FIELD_MANAGER, force=True)

    async def _patch(self, kind: Kind, body: Object, manager: str, *, force: bool, subresource: str = "") -> Object:
        metadata = body["metadata"]
        answer = await self._server.request(
            "PATCH",
            kind.path(metadata["namespace"], metadata["name"]) + subresource,
            query={"fieldManager": manager, "force": str(force).lower()},
            body=body,
            content_type=_APPLY,
        )
        self._store.put(kind, answer)  # the watch will say the same, later
        return answer


def owned(child: Object, owner_uid: str) -> bool:
    return any(reference["uid"] == owner_uid for reference in child["metadata"].get("ownerReferences", ()))


def _check_owner(kind: Kind, live: Object, owner_uid: str) -> None:
    if owned(live, owner_uid):
        return
    metadata = live["metadata"]
    owners = metadata.get("ownerReferences", ())
    ours = any(owner["kind"] == KIND and owner["apiVersion"].startswith(f"{GROUP}/") for owner in owners)
    whose = "is left from an earlier service of this name and about to go" if ours else "is not the operator's"
    raise _name_taken(kind, metadata["namespace"], metadata["name"], whose)


def _name_taken(kind: Kind, namespace: str, name: str, whose: str) -> SpecError:
    return SpecError(
        "NameTaken",
        f"{kind.name} {namespace}/{name} exists and {whose}; "
        "rename or delete it, or give this service or pool another name",
    )


def _digest(value: Object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _covers(live: object, wanted: object) -> bool:
    """Whether `live` says all that `wanted` says; lists of named or typed items are compared item by item."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(name in live and _covers(live[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list) and isinstance(live, list) and all(isinstance(item, dict) for item in wanted + live):
        return all(any(_covers(item, mine) for item in live) for mine in wanted)
    return live == wanted
