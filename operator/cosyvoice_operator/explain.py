"""How each figure of a service came about, in words: `cosyvoice-operator explain -f service.yaml`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cosyvoice_contract import PRESTOP_SECONDS
from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.service import KIND, CosyVoiceService
from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.desired.workers import EXIT_SECONDS, grace_seconds
from cosyvoice_operator.plan import Plan, PoolPlan, plan


def explain(documents: Iterable[Any], settings: Settings) -> str:
    """For every CosyVoiceService among the documents. Raises SpecError that names service, field and mend."""
    lines: list[str] = []
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") != KIND:
            continue
        name = (document.get("metadata") or {}).get("name", "?")
        try:
            planned = plan(CosyVoiceService.parse(document), settings)
        except SpecError as error:
            raise SpecError(error.reason, f"{name}: {error.message}") from error
        lines += _service(planned)
    return "\n".join(lines) + "\n"


def _service(planned: Plan) -> list[str]:
    spec = planned.service.spec
    source = next(iter(spec.model.source.model_dump(by_alias=True, exclude_none=True)))
    lines = [
        f"{planned.service.metadata.name}: model {spec.model.name} from {source}, served at {planned.url}/v1",
        f"  A stopping worker has {grace_seconds(planned)} s: {PRESTOP_SECONDS} s while endpoints change, up to "
        f"{spec.drain.timeout_seconds} s for running streams, {EXIT_SECONDS} s to leave.",
        f"  A rollout of type {spec.rollout.type}: {_ROLLOUTS[spec.rollout.type]}",
    ]
    lines += _voices(planned)
    for pool in planned.pools:
        lines += ["", *_pool(planned, pool)]
    return lines


def _voices(planned: Plan) -> list[str]:
    said = planned.service.spec.voices
    lines = []
    if said.preset:
        names = ", ".join(voice.name for voice in said.preset)
        lines.append(f"  Voices {names}, besides the model's own; a change of them reaches workers that run.")
    if said.aliases:
        lines.append("  " + ", ".join(f"{alias} is {voice}" for alias, voice in sorted(said.aliases.items())) + ".")
    store = said.store.persistent_volume_claim.claim_name if said.store is not None else ""
    kept = f"are kept on the claim {store}" if store else "are refused: spec.voices.store is not set"
    return [*lines, f"  Voices that clients upload {kept}."]


_ROLLOUTS = {
    "InPlace": "one worker goes before its replacement comes, so no spare GPU is needed.",
    "Surge": "the replacement comes first and needs a spare GPU.",
    "Recreate": "all workers go, then all come: the pool is silent meanwhile.",
}


def _pool(planned: Plan, pool: PoolPlan) -> list[str]:
    card = pool.card
    where = "this pool's streamsPerWorker" if pool.streams_from == "Spec" else _source(pool)
    lines = [
        f"  pool {pool.pool.name}: {pool.min_workers} to {pool.max_workers} workers (Deployment {pool.child_name})",
        f"    One worker carries {pool.streams_per_worker} streams: {where}.",
    ]
    if pool.pool.concurrency is not None:
        asked = pool.pool.concurrency
        lines.append(
            f"    {asked.min} to {asked.max} streams / {pool.streams_per_worker}, rounded up, "
            f"are {pool.min_workers} to {pool.max_workers} workers."
        )
    if card.gpu is None:
        lines.append(f"    Card {pool.pool.card} has no GPU: the worker computes on the CPU, in {pool.precision}.")
    else:
        resource = pool.pool.gpu_resource_name or card.gpu.resource_name
        lines.append(
            f"    A worker takes one {resource} ({pool.pool.card}, {card.gpu.memory}), computes in {pool.precision} "
            f"and needs NVIDIA driver {card.gpu.min_driver} or later."
        )
    requests = card.resources.requests | pool.pool.resources.requests
    needs = " and ".join(f"{quantity} of {name}" for name, quantity in sorted(requests.items()))
    lines.append(
        f"    It asks its node for {needs}: a machine needs more than that, for its own pods take some; "
        "the pool's resources.requests changes it."
    )
    lines.append(f"    Image {pool.image}; {pool.startup_seconds} s to load the model.")
    lines.append(f"    Nodes: {_nodes(pool)}")
    if planned.autoscaled:
        signals = " or ".join(f"{signal.type} of {signal.target_percent}%" for signal in pool.signals)
        lines.append(f"    The autoscaler adds workers above {signals}; the largest proposal wins.")
    else:
        lines.append("    No autoscaler: the number stays where it is set, within these bounds.")
    return lines


def _source(pool: PoolPlan) -> str:
    kind = "measured with this project" if pool.card.calibrated else "not measured with this project"
    return f"the catalogue's row {pool.pool.card} ({pool.card.source}; {kind})"


def _nodes(pool: PoolPlan) -> str:
    if pool.pool.node_selector:
        return "those that this pool's nodeSelector names."
    if not pool.card.nodes:
        return "any."
    return "any with one of\n" + "\n".join(f"      {labels}" for labels in pool.node_labels)
