"""What a service comes to once the card catalogue is looked up: the figures from which all children are made."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cosyvoice_operator.api.catalogue import Card, Precision
from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.service import CosyVoiceService, Engine, Pool, Signal
from cosyvoice_operator.api.settings import Settings, WorkerImage

CHILD_NAME_MAX = 52
"""A host name has 63: a pod's is its Deployment's, a ReplicaSet hash of up to 10 characters and 5 of its own."""


@dataclass(frozen=True)
class PoolPlan:
    """One pool, with everything that its card decides."""

    pool: Pool
    card: Card
    child_name: str
    """Of the pool's Deployment, HorizontalPodAutoscaler and PodDisruptionBudget."""
    min_workers: int
    max_workers: int
    streams_per_worker: int
    streams_from: Literal["Catalogue", "Spec"]
    precision: Precision
    max_running: int
    max_batch_frames: int
    memory_guard_percent: int
    signals: tuple[Signal, ...]
    startup_seconds: int
    image: str
    mounts: tuple[str, ...]
    """The objects of the user's that a worker's pod mounts, in words: without them it does not start."""

    @property
    def node_labels(self) -> list[str]:
        """The ways in which a node is known to have the card, in words; empty where the pool names its nodes itself."""
        if self.pool.node_selector:
            return []
        return [
            " and ".join(f"{key} in ({', '.join(values)})" for key, values in alternative.labels.items())
            for alternative in self.card.nodes
        ]


@dataclass(frozen=True)
class Plan:
    service: CosyVoiceService
    pools: tuple[PoolPlan, ...]
    worker_image: WorkerImage
    served: frozenset[str] = frozenset()
    """The optional kinds that the cluster has, as `group/version/Kind`."""

    @property
    def autoscaled(self) -> bool:
        return self.service.spec.autoscaling.provider != "None"

    @property
    def url(self) -> str:
        """Base of the OpenAI API inside the cluster, without `/v1`."""
        metadata, port = self.service.metadata, self.service.spec.service.port
        return f"http://{metadata.name}.{metadata.namespace}.svc" + ("" if port == 80 else f":{port}")


def plan(service: CosyVoiceService, settings: Settings, served: frozenset[str] = frozenset()) -> Plan:
    """`served` are the optional kinds that the cluster has, as `group/version/Kind`.

    Raises SpecError for what schema and CEL cannot see: it takes the catalogue to know."""
    cards = settings.catalogue.cards
    pools = tuple(_plan_pool(service, index, pool, cards, settings) for index, pool in enumerate(service.spec.pools))
    return Plan(service, pools, settings.worker_image, served)


def child_name(service: str, pool: str) -> str:
    """Legal, the same every time, and its own for every pair: the hash tells `a-b`/`c` from `a`/`b-c`."""
    digest = hashlib.sha256(f"{service}/{pool}".encode()).hexdigest()[:5]
    return f"{f'{service}-{pool}'[: CHILD_NAME_MAX - 6].rstrip('-')}-{digest}"


def _plan_pool(
    service: CosyVoiceService, index: int, pool: Pool, cards: dict[str, Card], settings: Settings
) -> PoolPlan:
    spec = service.spec
    card = cards.get(pool.card)
    if card is None:
        raise SpecError(
            "UnknownCard",
            f"spec.pools[{index}].card: {pool.card!r} is not in the card catalogue; "
            f"use one of {', '.join(sorted(cards))}, or add a row to the chart's value `cards`",
        )
    if card.gpu is None and pool.gpu_resource_name is not None:
        raise SpecError(
            "InvalidSpec",
            f"spec.pools[{index}].gpuResourceName: {pool.gpu_resource_name!r} cannot be asked for by card "
            f"{pool.card!r}, which has no GPU; remove it or choose another card",
        )
    engine = spec.engine.model_copy(update=pool.engine.model_dump(exclude_none=True))
    streams = pool.streams_per_worker or card.streams_per_worker
    if pool.workers is not None:
        low, high = pool.workers.min, pool.workers.max
    else:
        assert pool.concurrency is not None
        low, high = math.ceil(pool.concurrency.min / streams), math.ceil(pool.concurrency.max / streams)
    return PoolPlan(
        pool=pool,
        card=card,
        child_name=child_name(service.metadata.name, pool.name),
        min_workers=low,
        max_workers=high,
        streams_per_worker=streams,
        streams_from="Spec" if pool.streams_per_worker else "Catalogue",
        precision=_precision(engine, index, pool, card),
        max_running=engine.max_running or card.max_running,
        max_batch_frames=engine.max_batch_frames or card.max_batch_frames,
        memory_guard_percent=engine.memory_guard_percent,
        signals=tuple(pool.signals or spec.autoscaling.signals),
        startup_seconds=spec.startup.timeout_seconds or card.startup_seconds,
        image=spec.image or settings.worker_image.reference(card.image_variant),
        mounts=tuple(_mounts(service)),
    )


def _mounts(service: CosyVoiceService) -> Iterator[str]:
    spec = service.spec
    if spec.model.source.persistent_volume_claim is not None:
        claim = spec.model.source.persistent_volume_claim.claim_name
        yield f"PersistentVolumeClaim {claim} (spec.model.source.persistentVolumeClaim)"
    if spec.voices.store is not None:
        claim = spec.voices.store.persistent_volume_claim.claim_name
        yield f"PersistentVolumeClaim {claim} (spec.voices.store)"
    if spec.auth is not None and spec.auth.api_keys_secret_ref is not None:
        yield f"Secret {spec.auth.api_keys_secret_ref.name} (spec.auth.apiKeysSecretRef)"


def _precision(engine: Engine, index: int, pool: Pool, card: Card) -> Precision:
    if engine.precision == "Auto":
        return card.precisions[0]
    if engine.precision not in card.precisions:
        where = f"spec.pools[{index}].engine" if pool.engine.precision else "spec.engine"
        raise SpecError(
            "UnsupportedPrecision",
            f"{where}.precision: card {pool.card!r} of pool {pool.name!r} does not compute in {engine.precision!r}; "
            f"use Auto or one of {', '.join(card.precisions)}",
        )
    return engine.precision
