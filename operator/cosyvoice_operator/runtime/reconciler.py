"""One pass over one service: read, decide, apply what differs, prune, tell. Converged, it sends nothing."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.service import CosyVoiceService
from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.cluster.api_server import ApiError
from cosyvoice_operator.cluster.apply import Applier, owned
from cosyvoice_operator.cluster.events import Events
from cosyvoice_operator.cluster.kinds import (
    AUTOSCALER,
    CHILDREN,
    COSYVOICE_SERVICE,
    DEPLOYMENT,
    OPTIONAL,
    POD,
    Object,
    kind_of,
)
from cosyvoice_operator.cluster.store import ServiceKey, Store
from cosyvoice_operator.desired.children import children
from cosyvoice_operator.desired.replicas import replicas_to_set
from cosyvoice_operator.desired.workers import ANNOTATION_TEMPLATE
from cosyvoice_operator.observed.pools import PoolFacts, pool_facts
from cosyvoice_operator.observed.status import changed_conditions, recheck_after, refused_status, status_of
from cosyvoice_operator.plan import Plan, PoolPlan, plan
from cosyvoice_operator.runtime.throttle import RolloutThrottle

logger = logging.getLogger(__name__)


QUEUED_SECONDS = 15.0
"""After this a service that waits for its rollout asks again for a slot."""


class Retry(Exception):
    """The API server did not take a child; the status says so, and the pass is to be repeated."""


@dataclass(frozen=True)
class _Outcome:
    problem: SpecError | None = None
    """What the user has to mend."""
    failure: ApiError | None = None
    """What the API server refused: to be tried again."""
    queued: bool = False
    """Workers are to be replaced when other services have theirs."""


class Reconciler:
    """What a key in the queue is worked on with."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        applier: Applier,
        events: Events,
        *,
        measured: Callable[[], Mapping[str, float]],
        served: Callable[[], frozenset[str]] = frozenset,
        order_departure: Callable[[ServiceKey, Plan], Awaitable[float | None]],
        metrics_owner: Callable[[], str] = lambda: "",
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        """measured: pod uid -> audio seconds per second. served: optional kinds, as `group/version/Kind`."""
        self._settings = settings
        self._store = store
        self._applier = applier
        self._events = events
        self._measured = measured
        self._served = served
        self._order_departure = order_departure
        self._metrics_owner = metrics_owner
        self._throttle = RolloutThrottle(settings.rollouts_at_once)
        self._now = now

    async def reconcile(self, key: ServiceKey) -> float | None:
        """Seconds after which to look again by itself, or None. Raises for what a retry may mend."""
        raw = self._store.get(COSYVOICE_SERVICE, *key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            self._applier.forget(key)
            self._throttle.release(key)
            return None
        try:
            planned, wanted = self._decide(key, raw)
        except SpecError as refused:
            generation = raw["metadata"]["generation"]
            await self._tell(raw, refused_status(refused, generation, raw["status"], self._now()))
            return None
        done = await self._carry_out(key, planned, wanted, changed_by_user=_changed_by_user(raw))
        if done.failure is not None and _namespace_goes(done.failure):
            return None
        facts = self._facts(key, planned)
        if not done.queued and all(pool.replaced or pool.waits_for_node for pool in facts):
            self._throttle.done(
                key,
                sum(pool.ready for pool in facts),
                enough=all(pool.ready >= pool.plan.min_workers or pool.waits_for_node for pool in facts),
            )
        status = status_of(
            planned,
            facts,
            done.problem,
            raw["status"],
            self._now(),
            queued=done.queued,
            metrics_owner=self._metrics_owner(),
        )
        await self._tell(raw, status)
        if done.failure is not None:
            raise Retry(str(done.failure)) from done.failure
        departure = None if planned.service.spec.paused else await self._order_departure(key, planned)
        return QUEUED_SECONDS if done.queued else min(filter(None, (departure, recheck_after(facts))), default=None)

    def _decide(self, key: ServiceKey, raw: Object) -> tuple[Plan, list[Object]]:
        """What is wanted of a service. Raises SpecError, also for what should not happen: a retry cannot mend that."""
        try:
            planned = plan(CosyVoiceService.parse(_manifest(raw)), self._settings, self._served())
            return planned, children(planned)
        except SpecError:
            raise
        except Exception as error:
            logger.exception("%s/%s: its spec cannot be worked on", *key)
            told = f"{type(error).__name__}: {error}; this is a mistake in the operator, whose log has more"
            raise SpecError("InternalError", told) from error

    async def _carry_out(
        self, key: ServiceKey, planned: Plan, wanted: list[Object], *, changed_by_user: bool
    ) -> _Outcome:
        """Apply what differs and prune; a child that cannot be applied does not keep the others from it.

        Pruned is only when all is applied: until its replacement is there, what is no longer wanted serves.
        """
        if planned.service.spec.paused:
            return _Outcome()
        problem: SpecError | None = None
        failure: ApiError | None = None
        queued = False
        for manifest in wanted:
            if (
                not changed_by_user
                and self._replaces_workers(manifest)
                and not self._throttle.admit(key, self._ready(planned))
            ):
                queued = True
                continue
            try:
                await self._apply(planned, manifest)
            except SpecError as error:
                problem = problem or error
            except ApiError as error:
                if _servers_own(error):
                    raise
                failure = failure or error
                problem = problem or SpecError("Refused", f"the API server refused {_name(manifest)}: {error.message}")
        if problem is not None:
            return _Outcome(problem, failure, queued)
        names = {(kind_of(manifest), manifest["metadata"]["name"]) for manifest in wanted}
        for kind in (*CHILDREN, *OPTIONAL):
            for child in self._store.of_service(key, kind):
                name = child["metadata"]["name"]
                if (kind, name) not in names and owned(child, planned.service.metadata.uid):
                    await self._applier.prune(kind, child)
        return _Outcome(queued=queued)

    def _ready(self, planned: Plan) -> int:
        namespace = planned.service.metadata.namespace
        live = (self._store.get(DEPLOYMENT, namespace, pool.child_name) for pool in planned.pools)
        return sum(deployment["status"].get("readyReplicas", 0) for deployment in live if deployment is not None)

    def _replaces_workers(self, manifest: Object) -> bool:
        """Whether an apply would replace pods that are there."""
        if kind_of(manifest) is not DEPLOYMENT:
            return False
        metadata = manifest["metadata"]
        live = self._store.get(DEPLOYMENT, metadata["namespace"], metadata["name"])
        template = metadata["annotations"][ANNOTATION_TEMPLATE]
        return live is not None and live["annotations"].get(ANNOTATION_TEMPLATE) != template

    async def _apply(self, planned: Plan, manifest: Object) -> None:
        kind = kind_of(manifest)
        if kind in OPTIONAL and kind.type_name not in planned.served:
            raise SpecError(
                "KindNotServed",
                f"{kind.asked_for_by}: the cluster has no {kind.type_name}; install {kind.project} or remove the field",
            )
        applied = await self._applier.apply(manifest, planned.service.metadata.uid)
        if kind is DEPLOYMENT:
            pool = next(pool for pool in planned.pools if pool.child_name == manifest["metadata"]["name"])
            # The Deployment controller has not seen it yet, so nobody can have scaled it.
            new = not applied["status"]
            replicas = replicas_to_set(pool, planned.autoscaled, new=new, current=applied["spec"]["replicas"])
            if replicas is not None:
                await self._applier.set_replicas(applied, replicas)

    def _facts(self, key: ServiceKey, planned: Plan) -> list[PoolFacts]:
        namespace, _ = key
        pods = self._store.of_service(key, POD)

        def facts(pool: PoolPlan) -> PoolFacts:
            return pool_facts(
                pool,
                self._store.get(DEPLOYMENT, namespace, pool.child_name),
                self._store.get(AUTOSCALER, namespace, pool.child_name) if planned.autoscaled else None,
                pods,
                measured=self._measured(),
                drain_seconds=planned.service.spec.drain.timeout_seconds,
                now=self._now(),
            )

        return [facts(pool) for pool in planned.pools]

    async def _tell(self, raw: Object, status: Object) -> None:
        changed = changed_conditions(raw["status"], status)
        if await self._applier.apply_status(raw, status):
            for condition in changed:
                self._events.post(raw, condition)


def _changed_by_user(raw: Object) -> bool:
    """The spec is newer than what was carried out last: a difference is what the user wants, and now."""
    observed: int = raw["status"].get("observedGeneration", 0)
    return bool(observed != raw["metadata"]["generation"])


def _manifest(raw: Object) -> Object:
    return {name: raw[name] for name in ("apiVersion", "kind", "metadata", "spec")}


def _name(manifest: Object) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def _servers_own(error: ApiError) -> bool:
    """The API server is busy or broken, of which the user of a service need not hear.

    A field that does not exist and a webhook that fails are of code 500 too, and of those they have to.
    """
    told = ("failed to create typed patch object", "failed calling webhook")
    return error.code == 429 or (error.code >= 500 and not any(words in error.message for words in told))


def _namespace_goes(error: ApiError) -> bool:
    return error.code == 403 and "because it is being terminated" in error.message
