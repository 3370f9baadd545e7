"""The APIServices that make kube-apiserver send custom.metrics.k8s.io here: registered only where nobody else is, owned
by the chart's ClusterRole so that they go with it. A registered API that nobody serves stalls every namespace deletion
in the cluster, so what remains behind matters more than what is missing."""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cosyvoice_contract import LABEL_MANAGED_BY, MANAGED_BY
from cosyvoice_operator.cluster.api_server import ApiError, ApiServer
from cosyvoice_operator.metricsapi.telemetry import Telemetry
from cosyvoice_operator.metricsapi.wire import GROUP, VERSIONS

PATH = "/apis/apiregistration.k8s.io/v1/apiservices"
GROUP_PRIORITY = 100
VERSION_PRIORITY = {"v1beta2": 200, "v1beta1": 100}

logger = logging.getLogger(__name__)

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """The chart's ClusterRole: cluster-scoped, and gone when the release is."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Backend:
    """The Service in front of this process."""

    namespace: str
    name: str
    port: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write so that the group is ours or not at all. `foreign` says who else has it; then ours go."""

    create: tuple[Object, ...] = ()
    update: tuple[Object, ...] = ()
    delete: tuple[str, ...] = ()
    foreign: str = ""


def plan(existing: Iterable[Mapping[str, Any]], backend: Backend, owner: Owner | None, ca_bundle: bytes) -> Plan:
    """Decide from the APIServices that exist. `owner` None means that the release is being removed."""
    # The core group's APIService has no `group` at all.
    of_group = {item["metadata"]["name"]: item for item in existing if item["spec"].get("group") == GROUP}
    ours = {name: item for name, item in of_group.items() if _serves(item) == (backend.namespace, backend.name)}
    foreign = [f"{name} is served by {_describe(item)}" for name, item in sorted(of_group.items()) if name not in ours]
    if owner is None or foreign:
        return Plan(delete=tuple(sorted(ours)), foreign="; ".join(foreign))
    create, update = [], []
    for version in VERSIONS:
        wanted = _desired(version, backend, owner, ca_bundle)
        found = ours.get(wanted["metadata"]["name"])
        if found is None:
            create.append(wanted)
        elif not _same(found, wanted):
            wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            update.append(wanted)
    return Plan(create=tuple(create), update=tuple(update))


class Registrar:
    """Carries out `plan`; a pass is safe to repeat and to run in two replicas at once.

    reach: calls this process through its own Service; raises what says why nobody could. leaving: says whether this
    process's own Deployment is being deleted.
    """

    def __init__(
        self,
        server: ApiServer,
        telemetry: Telemetry,
        backend: Backend,
        cluster_role: str,
        *,
        existing: Callable[[], Iterable[Mapping[str, Any]]],
        ca_bundle: Callable[[], bytes],
        reach: Callable[[], Awaitable[None]],
        leaving: Callable[[], bool],
    ) -> None:
        self._server = server
        self._telemetry = telemetry
        self._backend = backend
        self._cluster_role = cluster_role
        self._existing = existing
        self._ca_bundle = ca_bundle
        self._reach = reach
        self._leaving = leaving
        self._foreign = ""

    async def reconcile(self) -> None:
        """One pass. Raises ApiError for what another pass may mend; losing a race to the other replica is no error."""
        owner = None if self._leaving() else await self._owner()
        todo = plan(self._existing(), self._backend, owner, self._ca_bundle())
        self._report(todo.foreign)
        if todo.create:
            self._telemetry.registered.set(0)
            await self._reach()  # a network in which nobody reaches this API must not get it registered
        for item in todo.create:
            await self._write("POST", PATH, item)
        for item in todo.update:
            await self._write("PUT", f"{PATH}/{item['metadata']['name']}", item)
        for name in todo.delete:
            await self._write("DELETE", f"{PATH}/{name}", None)
        self._telemetry.registered.set(owner is not None and not todo.foreign)

    async def _owner(self) -> Owner | None:
        path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{self._cluster_role}"
        try:
            role = await self._server.request("GET", path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        if role["metadata"].get("deletionTimestamp"):
            return None
        return Owner(self._cluster_role, role["metadata"]["uid"])

    async def _write(self, method: str, path: str, body: Object | None) -> None:
        try:
            await self._server.request(method, path, body=body)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            return
        logger.info(
            "%s %s",
            {"POST": "registered", "PUT": "updated", "DELETE": "withdrew"}[method],
            body["metadata"]["name"] if body else path.rpartition("/")[2],
        )

    def _report(self, foreign: str) -> None:
        if foreign and foreign != self._foreign:
            logger.error(
                "another server owns %s (%s), so this one is not registered and HPAs cannot read its metrics; "
                "scale by spec.autoscaling.provider KEDA, give it the rules of docs/autoscaling.md, or remove it",
                GROUP,
                foreign,
            )
        elif self._foreign and not foreign:
            logger.info("nobody else serves %s any more", GROUP)
        self._foreign = foreign


def _desired(version: str, backend: Backend, owner: Owner, ca_bundle: bytes) -> Object:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {
            "name": f"{version}.{GROUP}",
            "labels": {LABEL_MANAGED_BY: MANAGED_BY},
            "ownerReferences": [
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "ClusterRole",
                    "name": owner.name,
                    "uid": owner.uid,
                }
            ],
        },
        "spec": {
            "group": GROUP,
            "version": version,
            "groupPriorityMinimum": GROUP_PRIORITY,
            "versionPriority": VERSION_PRIORITY[version],
            "service": {"namespace": backend.namespace, "name": backend.name, "port": backend.port},
            "caBundle": base64.b64encode(ca_bundle).decode(),
        },
    }


def _same(found: Mapping[str, Any], wanted: Object) -> bool:
    meta = found["metadata"]
    return bool(
        found["spec"] == wanted["spec"]
        and meta.get("ownerReferences") == wanted["metadata"]["ownerReferences"]
        and (meta.get("labels") or {}).items() >= wanted["metadata"]["labels"].items()
    )


def _serves(item: Mapping[str, Any]) -> tuple[str, str] | None:
    service = item["spec"].get("service")
    return (service["namespace"], service["name"]) if service else None


def _describe(item: Mapping[str, Any]) -> str:
    served = _serves(item)
    return f"Service {served[0]}/{served[1]}" if served else "kube-apiserver itself"
