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
        self._rolling: dict[ServiceKey, int] = {}
        """Service -> its ready workers when it got its slot."""

    def admit(self, service: ServiceKey, ready: int) -> bool:
        """Whether the service, of which `ready` workers are ready, may roll now. It keeps its slot until it is done."""
        if service not in self._rolling and len(self._rolling) >= self._at_once:
            return False
        self._rolling.setdefault(service, ready)
        return True

    def done(self, service: ServiceKey, ready: int, *, enough: bool) -> None:
        """All workers are new, `ready` of them ready. The slot is free if that is as many as before, or `enough`.

        Not all that are wanted: on a full cluster one may wait for a GPU for ever. A rollout that hangs keeps its slot,
        which protects the rest.
        """
        if enough or ready >= self._rolling.get(service, 0):
            self.release(service)

    def release(self, service: ServiceKey) -> None:
        """The service is gone."""
        self._rolling.pop(service, None)
