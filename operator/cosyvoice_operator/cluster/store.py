"""What the watches have told, as far as decisions need it. Reading it costs no request."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from cosyvoice_contract import LABEL_SERVICE
from cosyvoice_operator.cluster.kinds import AUTOSCALER, COSYVOICE_SERVICE, DEPLOYMENT, POD, Kind, Object

FIELD_MANAGER = "cosyvoice-operator"

ServiceKey = tuple[str, str]
"""Namespace and name of a CosyVoiceService."""
_Key = tuple[Kind, str, str]

_METADATA = ("name", "namespace", "uid", "labels", "ownerReferences", "creationTimestamp", "deletionTimestamp")
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' annotation: of a ReplicaSet's ready pods the one of the lowest cost goes first."""
_POD_STATUS = ("phase", "conditions", "containerStatuses", "podIP")


@dataclass
class Store:
    """Objects by kind, namespace and name, trimmed; `of_service` finds those that bear a service's label."""

    _objects: dict[_Key, Object] = field(default_factory=dict)
    _by_service: dict[ServiceKey, set[_Key]] = field(default_factory=lambda: defaultdict(set))

    def put(self, kind: Kind, raw: Object) -> bool:
        """Take in an object from a watch or an answer; false if it says nothing new or is older than what is here."""
        key = _key(kind, raw)
        known = self._objects.get(key)
        version = int(raw["metadata"]["resourceVersion"])
        if known is not None and known["version"] > version:
            return False
        trimmed = _trimmed(kind, raw)
        changed = known is None or {**known, "version": 0} != {**trimmed, "version": 0}
        self._objects[key] = trimmed
        service, before = service_key(kind, raw), service_key(kind, known) if known is not None else None
        if before is not None and before != service:
            self._drop(before, key)
        if service is not None:
            self._by_service[service].add(key)
        return changed

    def remove(self, kind: Kind, raw: Object) -> None:
        """Forget a deleted object, unless another has taken its name meanwhile."""
        key = _key(kind, raw)
        known = self._objects.get(key)
        if known is None or known["metadata"]["uid"] != raw["metadata"]["uid"]:
            return
        del self._objects[key]
        service = service_key(kind, known)
        if service is not None:
            self._drop(service, key)

    def _drop(self, service: ServiceKey, key: _Key) -> None:
        self._by_service[service].discard(key)
        if not self._by_service[service]:
            del self._by_service[service]

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._objects.get((kind, namespace, name))

    def of_service(self, service: ServiceKey, kind: Kind) -> list[Object]:
        """Objects of a kind that bear the service's label, whoever made them, by name."""
        keys = sorted(key[1:] for key in self._by_service.get(service, ()) if key[0] is kind)
        return [self._objects[(kind, *key)] for key in keys]

    def services(self) -> list[ServiceKey]:
        return [key[1:] for key in self._objects if key[0] is COSYVOICE_SERVICE]

    def names(self, kind: Kind) -> Iterator[tuple[str, str]]:
        """Namespace and name of every object of a kind."""
        return (key[1:] for key in list(self._objects) if key[0] is kind)


def service_key(kind: Kind, raw: Object) -> ServiceKey | None:
    """The service that an object is, or whose label it bears."""
    metadata = raw["metadata"]
    name = metadata["name"] if kind is COSYVOICE_SERVICE else (metadata.get("labels") or {}).get(LABEL_SERVICE)
    return (metadata["namespace"], name) if name else None


def _key(kind: Kind, raw: Object) -> _Key:
    return (kind, raw["metadata"]["namespace"], raw["metadata"]["name"])


def _trimmed(kind: Kind, raw: Object) -> Object:
    metadata = raw["metadata"]
    trimmed: Object = {
        "metadata": {name: metadata[name] for name in _METADATA if name in metadata},
        "version": int(metadata["resourceVersion"]),
    }
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    if kind is COSYVOICE_SERVICE:
        trimmed |= {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "spec": spec, "status": status}
        trimmed["metadata"]["generation"] = metadata["generation"]
    elif kind is POD:
        trimmed["status"] = {name: status[name] for name in _POD_STATUS if name in status}
        trimmed["deletion_cost"] = (metadata.get("annotations") or {}).get(DELETION_COST, "")
    else:
        trimmed["owned"] = _owned_fields(metadata)
        if kind is DEPLOYMENT:
            trimmed["metadata"]["generation"] = metadata["generation"]
            trimmed["annotations"] = metadata.get("annotations", {})
            trimmed |= {"spec": {"replicas": spec.get("replicas", 1)}, "status": status}
        elif kind is AUTOSCALER:
            status = {
                name: status[name] for name in ("currentReplicas", "desiredReplicas", "conditions") if name in status
            }
            trimmed |= {"status": status}
    return trimmed


def _owned_fields(metadata: Object) -> str:
    """A digest of the fields that server-side apply counts as ours.

    Whoever changes or removes one of them takes it over, which shows here; changes to other people's fields do not.
    """
    for entry in metadata.get("managedFields", ()):
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            return hashlib.sha256(json.dumps(entry["fieldsV1"], sort_keys=True).encode()).hexdigest()
    return ""
