"""The operator's own metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cosyvoice_operator.cluster.kinds import COSYVOICE_SERVICE
from cosyvoice_operator.cluster.store import Store

_SERVICE = ("namespace", "service")

RECONCILES = Histogram(
    "cosyvoice_operator_reconcile_seconds",
    "Passes over a service, by result.",
    ["result"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
LEADS = Gauge("cosyvoice_operator_leads", "1 where this replica is the one that works.")
QUEUE_DEPTH = Gauge("cosyvoice_operator_queue_depth", "Services that wait for a pass or are in one.")
DEAF_SECONDS = Gauge(
    "cosyvoice_operator_watch_deaf_seconds", "How long a change of the replicas' Lease has not come by the watches."
)


class ServicesCollector(Collector):
    """What the services' statuses say, read from the store when Prometheus asks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        conditions = GaugeMetricFamily(
            "cosyvoice_service_condition",
            "1 for the status that a condition has.",
            labels=[*_SERVICE, "type", "status"],
        )
        workers = GaugeMetricFamily(
            "cosyvoice_service_workers", "Workers of a pool.", labels=[*_SERVICE, "pool", "card", "state"]
        )
        streams = GaugeMetricFamily(
            "cosyvoice_service_capacity_streams",
            "Audio seconds per second that the ready workers of a pool carry.",
            labels=[*_SERVICE, "pool", "card"],
        )
        for key in self._store.services():
            raw = self._store.get(COSYVOICE_SERVICE, *key)
            status = raw["status"] if raw is not None else {}
            for condition in status.get("conditions", ()):
                conditions.add_metric([*key, condition["type"], condition["status"]], 1)
            for pool in status.get("pools", ()):
                labels = [*key, pool["name"], pool["card"]]
                streams.add_metric(labels, pool["capacityStreams"])
                for state, number in pool["workers"].items():
                    workers.add_metric([*labels, state], number)
        yield from (conditions, workers, streams)
