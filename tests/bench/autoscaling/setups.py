"""The ways of scaling that are compared: our three signals, and three that are usual elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import yaml

from cosyvoice_operator.api.settings import Settings
from cosyvoice_operator.render import render
from tests.bench.autoscaling.hpa import DEFAULT_DOWN, DEFAULT_UP, Metric, Rules, rules
from tests.bench.autoscaling.pool import DEMAND_WINDOW, Card, Load, Signal

CARDS = (
    # Capacity and CPU request: the card catalogue. A single stream's speed: assumed, after real-time factors of about
    # 0.25 (T4), 0.12 (A10) and 0.08 (A100).
    Card("T4", 50, 4, 4),
    Card("A10", 150, 8, 6),
    Card("A100", 400, 12, 8),
)
DAYTIME_AUDIO_SECONDS = 8
"""What the one who sets a target in requests per second measured one day at noon."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A signal with its target, and the HPA's behaviour."""

    name: str
    signal: Signal
    up: Rules
    down: Rules


def gpu_load(card: Card, load: Load) -> Metric:
    """Demand over capacity: what arrives, what waits (over 30 s), what was refused. Target 80%."""
    demand = load.arriving + load.waiting / DEMAND_WINDOW + load.refused
    return Metric(demand / card.capacity, 0.8)


def busy(card: Card, load: Load) -> float:
    """NVML's utilisation of one worker: the share of time in which any kernel runs.

    That is the share of time in which at least one stream is being generated; with streams that come independently and
    take `1 / alone` of their length, 1 - exp(-streams).
    """
    if not load.ready:
        return 0.0
    return 1.0 if load.waiting else 1 - math.exp(-load.generated / load.ready / card.alone)


def gpu_utilization(card: Card, load: Load) -> Metric:
    """Target 85%."""
    return Metric(busy(card, load) * load.ready, 0.85)


def gpu_memory(card: Card, load: Load) -> Metric:
    """KV blocks in use: grow with what is generated at once, and are full when something waits. Target 80%."""
    used = 1.0 if load.waiting else min(1.0, load.generated / max(1, load.ready) / card.capacity)
    return Metric(used * load.ready, 0.8)


def nvml_80(card: Card, load: Load) -> Metric:
    """dcgm-exporter, Prometheus and adapter, target 80%."""
    return Metric(busy(card, load) * load.ready, 0.8)


def cpu_80(card: Card, load: Load) -> Metric:
    """The HPA's own CPU metric, target 80% of the request: an engine loop fills one core, streams cost little more."""
    cores = 0.2 + busy(card, load) + 0.004 * load.generated / max(1, load.ready)
    return Metric(cores / card.cpu_request * load.ready, 0.8)


def requests_per_second(card: Card, load: Load) -> Metric:
    """Served requests per second; the target is 80% of what one worker serves of texts of daytime length."""
    return Metric(load.requests, 0.8 * card.capacity / DAYTIME_AUDIO_SECONDS)


def setups() -> tuple[Setup, ...]:
    """Ours with the behaviour that the operator writes, the others with Kubernetes' own."""
    up, down = operator_behaviour()
    return (
        Setup("GPULoad", gpu_load, up, down),
        Setup("GPUUtilization", gpu_utilization, up, down),
        Setup("GPUMemory", gpu_memory, up, down),
        Setup("usual: CPU 80%", cpu_80, DEFAULT_UP, DEFAULT_DOWN),
        Setup("usual: NVML 80%", nvml_80, DEFAULT_UP, DEFAULT_DOWN),
        Setup("usual: requests/s", requests_per_second, DEFAULT_UP, DEFAULT_DOWN),
    )


def operator_behaviour() -> tuple[Rules, Rules]:
    """Up and down as they stand in the HPA that the operator makes of a service that says nothing about them."""
    service: dict[str, Any] = {
        "apiVersion": "tts.cosyvoice.io/v1alpha1",
        "kind": "CosyVoiceService",
        "metadata": {"name": "bench", "namespace": "bench"},
        "spec": {
            "model": {"name": "M", "source": {"builtIn": {"name": "DemoEnglish"}}},
            "pools": [{"name": "t4", "card": "T4", "workers": {"min": 1, "max": 8}}],
        },
    }
    made = yaml.safe_load_all(render([service], Settings.load(None)))
    (behavior,) = (item["spec"]["behavior"] for item in made if item["kind"] == "HorizontalPodAutoscaler")
    return rules(behavior["scaleUp"]), rules(behavior["scaleDown"])
