"""Marks the emptiest worker of a pool that its autoscaler wants to shrink, and takes marks back that serve no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cosyvoice_contract import LABEL_POOL
from cosyvoice_operator.cluster.api_server import ApiServer
from cosyvoice_operator.cluster.deletion_cost import set_deletion_cost
from cosyvoice_operator.cluster.kinds import AUTOSCALER, POD
from cosyvoice_operator.cluster.store import ServiceKey, Store
from cosyvoice_operator.observed.departure import FIRST, marks, wants_fewer
from cosyvoice_operator.plan import Plan

AGAIN_SECONDS = 15.0
"""While a pool is to shrink its emptiest worker is looked for this often."""


class Departure:
    """`work` is pod uid -> sequences that run and wait."""

    def __init__(self, server: ApiServer, store: Store, work: Callable[[], Mapping[str, int]]) -> None:
        self._server = server
        self._store = store
        self._work = work

    async def order(self, key: ServiceKey, planned: Plan) -> float | None:
        """Seconds after which to look again, None where no pool is to shrink. Raises ApiError."""
        again = None
        pods = self._store.of_service(key, POD)
        for pool in planned.pools:
            own = [pod for pod in pods if pod["metadata"].get("labels", {}).get(LABEL_POOL) == pool.pool.name]
            autoscaler = self._store.get(AUTOSCALER, key[0], pool.child_name) if planned.autoscaled else None
            fewer = wants_fewer(autoscaler)
            again = AGAIN_SECONDS if fewer else again
            change = marks(own, self._work(), fewer=fewer)
            for pod in change.clear:
                await set_deletion_cost(self._server, self._store, pod, None)
            if change.set is not None:
                await set_deletion_cost(self._server, self._store, change.set, FIRST)
        return again
