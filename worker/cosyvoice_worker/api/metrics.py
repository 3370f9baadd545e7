"""What Prometheus sees of a worker. Values that the engine or the GPU hold are read at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cosyvoice_contract import LoadReport
from cosyvoice_worker.device.nvml import GpuReading
from cosyvoice_worker.engine.engine import Counters

# The time at which each series began would be as many lines again, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_AUDIO_SECONDS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
_RTF = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 5.0)
_AUDIO_SECONDS = (0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)


class Metrics:
    """One registry for one application; nothing global."""

    def __init__(
        self,
        *,
        load: Callable[[], LoadReport | None],
        gpu: Callable[[], GpuReading | None],
        model_name: str,
        ready: Callable[[], bool],
        reloads: Callable[[], Iterable[tuple[str, str, int]]],
        engine: Callable[[], Counters | None],
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "cosyvoice_requests",
            "Speech requests by how they ended: completed, cancelled (the client left), failed, interrupted (failed "
            "after the first byte), refused (429), draining (503), invalid (4xx)",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("completed", "cancelled", "failed", "interrupted", "refused", "draining", "invalid"):
            self.requests.labels(outcome)
        self.unauthorized = Counter(
            "cosyvoice_unauthorized", "Requests without a known API key (401), on any path", registry=self.registry
        )
        self.key_requests = Counter(
            "cosyvoice_key_requests",
            "Requests by the name of their API key: one that has not come for long can be taken away",
            ["key"],
            registry=self.registry,
        )
        self.first_audio = Histogram(
            "cosyvoice_first_audio_seconds",
            "From the request to its first audio, queue included",
            buckets=_FIRST_AUDIO_SECONDS,
            registry=self.registry,
        )
        self.rtf = Histogram(
            "cosyvoice_rtf",
            "Real-time factor of completed requests: seconds from the request to its last audio, per second of audio",
            buckets=_RTF,
            registry=self.registry,
        )
        self.audio = Counter("cosyvoice_audio_seconds", "Audio given to clients", registry=self.registry)
        self.audio_per_request = Histogram(
            "cosyvoice_request_audio_seconds",
            "Audio of completed requests",
            buckets=_AUDIO_SECONDS,
            registry=self.registry,
        )
        self.playback_gaps = Counter(
            "cosyvoice_playback_gaps",
            "Times that a client which plays from the first byte on would have run dry",
            registry=self.registry,
        )
        self.load_seconds = Gauge("cosyvoice_model_load_seconds", "From start to ready", registry=self.registry)
        self.registry.register(
            _Readings(load=load, gpu=gpu, model_name=model_name, ready=ready, reloads=reloads, engine=engine)
        )

    def expose(self) -> bytes:
        return generate_latest(self.registry)


class _Readings(Collector):
    def __init__(
        self,
        *,
        load: Callable[[], LoadReport | None],
        gpu: Callable[[], GpuReading | None],
        model_name: str,
        ready: Callable[[], bool],
        reloads: Callable[[], Iterable[tuple[str, str, int]]],
        engine: Callable[[], Counters | None],
    ) -> None:
        self._load = load
        self._gpu = gpu
        self._model_name = model_name
        self._ready = ready
        self._reloads = reloads
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("cosyvoice_model_info", "The model served", labels=["model"])
        info.add_metric([self._model_name], 1)
        yield info
        yield GaugeMetricFamily("cosyvoice_ready", "1 when requests are taken", value=float(self._ready()))
        reloads = CounterMetricFamily(
            "cosyvoice_reloads",
            "Files that were read because they had changed: taken, or failed, and the log says what counts instead",
            labels=["what", "outcome"],
        )
        for what, outcome, count in self._reloads():
            reloads.add_metric([what, outcome], count)
        yield reloads
        load = self._load()
        if load is not None:
            yield from _load_gauges(load)
        counters = self._engine()
        if counters is not None:
            yield from _engine_counters(counters)
        gpu = self._gpu()
        if gpu is not None:
            yield from _gpu_gauges(gpu)


def _load_gauges(load: LoadReport) -> Iterator[GaugeMetricFamily]:
    yield GaugeMetricFamily("cosyvoice_streams_running", "Requests in the engine", value=load["running"])
    yield GaugeMetricFamily("cosyvoice_streams_queued", "Requests that wait", value=load["queued"])
    yield GaugeMetricFamily("cosyvoice_demand", "Audio seconds per second demanded", value=load["demand"])
    capacity = GaugeMetricFamily(
        "cosyvoice_capacity", "Audio seconds per second sustained, and where the figure is from", labels=["from"]
    )
    capacity.add_metric([load["capacity_from"]], load["capacity"])
    yield capacity
    yield GaugeMetricFamily("cosyvoice_gpu_load", "demand / capacity", value=load["gpu_load"])
    yield GaugeMetricFamily("cosyvoice_gpu_memory", "KV blocks in use over their budget", value=load["gpu_memory"])
    yield GaugeMetricFamily("cosyvoice_draining", "1 while shutting down", value=float(load["draining"]))
    if load["gpu_utilization"] is not None:
        yield GaugeMetricFamily(
            "cosyvoice_gpu_utilization", "NVML, average of 30 s, 0..1", value=load["gpu_utilization"]
        )


def _engine_counters(counters: Counters) -> Iterator[CounterMetricFamily]:
    for name, text, value in (
        ("cosyvoice_llm_batches", "Passes of the language model", counters.llm_batches),
        ("cosyvoice_llm_rows", "Sentences in those passes", counters.llm_rows),
        ("cosyvoice_flow_batches", "Batches through flow and vocoder", counters.flow_batches),
        ("cosyvoice_flow_rows", "Windows in those batches", counters.flow_rows),
        ("cosyvoice_speech_tokens", "Speech tokens made", counters.speech_tokens),
        ("cosyvoice_preempted", "Sentences that gave up their KV blocks and were computed again", counters.preempted),
        (
            "cosyvoice_not_finite",
            "Results that were not finite: computed again in float32, or else failed",
            counters.not_finite,
        ),
        ("cosyvoice_engine_restarts", "Crashes of the engine, after which it was made again", counters.restarts),
        ("cosyvoice_failed_batches", "Batches that failed, for whatever reason", counters.faults.batches),
    ):
        yield CounterMetricFamily(name, text, value=value)
    steps = CounterMetricFamily(
        "cosyvoice_out_of_memory_steps", "Steps taken where GPU memory ran out, in their order", labels=["step"]
    )
    for step, count in counters.faults.out_of_memory.items():
        steps.add_metric([step], count)
    yield steps


def _gpu_gauges(gpu: GpuReading) -> Iterator[GaugeMetricFamily]:
    for name, text, value in (
        ("cosyvoice_gpu_memory_used_bytes", "NVML: memory in use on the device", gpu.memory_used),
        ("cosyvoice_gpu_temperature_celsius", "NVML", gpu.temperature),
        ("cosyvoice_gpu_power_watts", "NVML", gpu.power),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, text, value=value)
    if gpu.throttle_reasons is not None:
        throttled = GaugeMetricFamily(
            "cosyvoice_gpu_throttled", "1 for each reason that holds clocks down", labels=["reason"]
        )
        for reason in gpu.throttle_reasons:
            throttled.add_metric([reason], 1)
        yield throttled
