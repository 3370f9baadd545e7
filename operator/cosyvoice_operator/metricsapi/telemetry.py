"""What the metrics API says about itself, in Prometheus' form."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cosyvoice_operator.metricsapi.aggregate import Reading


class Telemetry:
    """One process's instruments; names start with `cosyvoice_metrics_api_`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.scrapes = Counter(
            "cosyvoice_metrics_api_scrapes",
            "Readings asked of workers, by outcome",
            ["outcome"],
            registry=self.registry,
        )
        self.round_seconds = Histogram(
            "cosyvoice_metrics_api_scrape_round_seconds",
            "Time to ask every worker once",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 3, 4, 5, 10),
            registry=self.registry,
        )
        self.requests = Counter(
            "cosyvoice_metrics_api_requests",
            "Requests for custom.metrics.k8s.io, by HTTP status code",
            ["code"],
            registry=self.registry,
        )
        self.keda_requests = Counter(
            "cosyvoice_metrics_api_keda_requests",
            "Requests of KEDA, by HTTP status code",
            ["code"],
            registry=self.registry,
        )
        self.registered = Gauge(
            "cosyvoice_metrics_api_registered",
            "1 while custom.metrics.k8s.io is registered for this metrics API, 0 while another server owns it",
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            "cosyvoice_metrics_api_certificate_expiry_timestamp_seconds",
            "When the serving certificate expires",
            registry=self.registry,
        )

    def watch_readings(self, readings: Callable[[], Iterable[Reading]]) -> None:
        """Export the age of the oldest reading, computed when Prometheus asks."""
        self.registry.register(_OldestReading(readings))


class _OldestReading(Collector):
    def __init__(self, readings: Callable[[], Iterable[Reading]]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "cosyvoice_metrics_api_oldest_reading_seconds", "Age of the oldest last reading of a worker that counts"
        )
        taken = [reading.taken_at for reading in self._readings()]
        if taken:
            family.add_metric([], time.time() - min(taken))
        yield family
