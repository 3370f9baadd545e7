"""The operator's own metrics."""

from prometheus_client import Gauge, Histogram

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
