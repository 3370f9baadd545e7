"""All child objects of a service. Pure: the same plan gives the same objects, to the letter."""

from __future__ import annotations

from cosyvoice_operator.desired.disruption import budget
from cosyvoice_operator.desired.exposure import exposure
from cosyvoice_operator.desired.metadata import Manifest
from cosyvoice_operator.desired.scaling import autoscaler
from cosyvoice_operator.desired.service import service
from cosyvoice_operator.desired.voices import voices
from cosyvoice_operator.desired.workers import deployment
from cosyvoice_operator.plan import Plan


def children(plan: Plan) -> list[Manifest]:
    """In the order in which they are applied: what another one refers to comes before it."""
    manifests = [service(plan), *voices(plan)]
    for pool in plan.pools:
        manifests.append(deployment(plan, pool))
        if plan.autoscaled:
            manifests.append(autoscaler(plan, pool))
        manifests.append(budget(plan, pool))
    manifests += exposure(plan)
    return manifests
