"""Who serves custom.metrics.k8s.io where the metrics API does not: an autoscaler without readings is then no riddle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from cosyvoice_contract import LABEL_MANAGED_BY, MANAGED_BY
from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.cluster.mirror import Mirror

GROUP: Final = "custom.metrics.k8s.io"


class MetricsGroup:
    """Follows the cluster's APIServices; `changed` is called when another server takes the group or leaves it."""

    def __init__(self, server: ApiServer, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._mirror = Mirror(
            server, "/apis/apiregistration.k8s.io/v1/apiservices", on_change=self._look, slim=_without_status
        )
        self.owner = ""
        """Who else serves the group, in words; empty: nobody does."""

    async def run(self) -> None:
        await self._mirror.run()

    def _look(self) -> None:
        owner = other_owner(self._mirror.objects.values())
        if owner != self.owner:
            self.owner = owner
            self._changed()


def other_owner(apiservices: Iterable[Mapping[str, Any]]) -> str:
    """Who but the metrics API serves the group. The metrics API labels what it registers as managed by the operator."""
    others = set()
    for item in apiservices:
        labels = item["metadata"].get("labels") or {}
        if item["spec"].get("group") != GROUP or labels.get(LABEL_MANAGED_BY) == MANAGED_BY:
            continue
        service = item["spec"].get("service")
        others.add(f"Service {service['namespace']}/{service['name']}" if service else "kube-apiserver itself")
    return " and ".join(sorted(others))


def _without_status(item: dict[str, Any]) -> dict[str, Any]:
    metadata = {name: item["metadata"][name] for name in ("name", "labels") if name in item["metadata"]}
    return {"metadata": metadata, "spec": {name: item["spec"].get(name) for name in ("group", "service")}}
