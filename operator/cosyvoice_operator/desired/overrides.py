"""Lays a user's pod template over the operator's, the way kubectl's strategic merge does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists of a pod whose items are told apart by a key (`patchMergeKey` in Kubernetes' types): items of the same key are
merged and others added. `tolerations` have none: they are added. Every other list is replaced."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A new object: `over` wins field by field; null removes a field."""
    result = dict(base)
    for name, value in over.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(result.get(name), Mapping):
            result[name] = merged(result[name], value)
        elif isinstance(value, list) and isinstance(result.get(name), list):
            result[name] = _merged_list(name, result[name], value)
        else:
            result[name] = value
    return result


def _merged_list(name: str, base: list[Any], over: list[Any]) -> list[Any]:
    if name == "tolerations":
        return base + [item for item in over if item not in base]
    key = _KEYS.get(name)
    if key is None:
        return over
    items = list(base)
    places = {_key_of(item, key): place for place, item in enumerate(base)}
    places.pop(None, None)
    for item in over:
        # What has no key is added as it is: the API server says what is wrong with it.
        place = places.get(_key_of(item, key))
        if place is None:
            items.append(item)
        else:
            items[place] = merged(items[place], item)
    return items


def _key_of(item: object, key: str) -> str | int | None:
    found = item.get(key) if isinstance(item, Mapping) else None
    return found if isinstance(found, str | int) else None
