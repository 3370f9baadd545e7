"""Rolls a fleet a few services at a time where the operator itself is what changed.

An upgrade of the operator, or of the worker image in its settings, changes the pod template of every service at once;
without this every GPU of the cluster would load a new worker in the same minute, and a bad image would reach them all.
"""

from __future__ import annotations

from cosyvoice_operator.cluster.store import ServiceKey


class RolloutThrottle:
    """Slots for services whose workers are being replaced on the operator's own account."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._rolling: set[ServiceKey] = set()

    def admit(self, service: ServiceKey) -> bool:
        """Whether the service may roll now. It keeps its slot until `release`."""
        if service not in self._rolling and len(self._rolling) >= self._at_once:
            return False
        self._rolling.add(service)
        return True

    def release(self, service: ServiceKey) -> None:
        """The rollout is complete, or the service is gone. One that hangs keeps its slot: that protects the rest."""
        self._rolling.discard(service)
