"""Counters of what is sent to the API server."""

from prometheus_client import Counter

APPLIES = Counter(
    "cosyvoice_operator_apply_total",
    "Server-side applies sent, by kind and whether they changed the object.",
    ["kind", "changed"],
)
