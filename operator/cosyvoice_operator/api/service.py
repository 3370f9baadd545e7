"""CosyVoiceService, v1alpha1: what a user may say. The CRD is generated from these models (`crd.py`)."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from cosyvoice_contract import GROUP
from cosyvoice_operator.api.base import DnsLabel, DnsSubdomain, Model, cel, list_map
from cosyvoice_operator.api.errors import SpecError
from cosyvoice_operator.api.exposure import AUTH_RULE, Auth, Endpoint
from cosyvoice_operator.api.kubernetes import (
    NodeSelector,
    PodTemplate,
    Resources,
    ScalingBehavior,
    Toleration,
)
from cosyvoice_operator.api.voices import Voices

VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "CosyVoiceService"
PLURAL = "cosyvoiceservices"

NAME_MAX = 40
"""A service's name is also its Service's, and the stem of its children's."""
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"


def _unique(field: str, key: str, values: list[str]) -> None:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{field}: {key} {twice[0]!r} is given twice")


class PersistentVolumeClaimSource(Model):
    """An official CosyVoice model directory on a claim in the service's namespace; it is mounted read-only."""

    claim_name: DnsSubdomain
    """Name of the PersistentVolumeClaim; with several workers its access mode must allow several readers."""
    path: Annotated[str, Field(max_length=1024, pattern=r"^([^/].*)?$")] = ""
    """Directory of the model on the volume, relative to its root."""


class BuiltInSource(Model):
    """A small model that the worker image carries: first steps and demos, no download."""

    name: Literal["DemoEnglish"]


class RandomSource(Model):
    """Seeded random weights, for tests of everything but the sound."""

    size: Literal["Tiny"] = "Tiny"
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


SOURCES = ("persistentVolumeClaim", "builtIn", "random")
_ONE_SOURCE = f"exactly one of {', '.join(SOURCES)} is required"


class ModelSource(Model):
    """Where the weights come from: exactly one of these."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (f"[{', '.join(f'has(self.{name})' for name in SOURCES)}].filter(given, given).size() == 1", _ONE_SOURCE)
        )
    )

    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    built_in: BuiltInSource | None = None
    random: RandomSource | None = None

    @model_validator(mode="after")
    def exactly_one(self) -> Self:
        if [self.persistent_volume_claim, self.built_in, self.random].count(None) != len(SOURCES) - 1:
            raise ValueError(_ONE_SOURCE)
        return self


class ModelSpec(Model):
    """The model that every pool serves."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
    """How clients call it: the `model` of a request and an entry of `/v1/models`."""
    source: ModelSource


_MIN_MAX = "min must not be greater than max"


class Concurrency(Model):
    """How many streams a pool must carry. One stream is one second of audio per second."""

    model_config = ConfigDict(json_schema_extra=cel(("self.min <= self.max", _MIN_MAX)))

    min: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Streams that must be carried at any time."""
    max: Annotated[int, Field(ge=1, le=1_000_000)]
    """Streams up to which the pool may grow."""

    @model_validator(mode="after")
    def ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"{_MIN_MAX} ({self.min} > {self.max})")
        return self


class Workers(Model):
    """How many workers a pool may have, for who wants to fix GPUs instead of streams."""

    model_config = ConfigDict(json_schema_extra=cel(("self.min <= self.max", _MIN_MAX)))

    min: Annotated[int, Field(ge=1, le=5_000)] = 1
    max: Annotated[int, Field(ge=1, le=5_000)]

    @model_validator(mode="after")
    def ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"{_MIN_MAX} ({self.min} > {self.max})")
        return self


_SIZE = "exactly one of concurrency, workers is required"


class Signal(Model):
    """A reading that the autoscaler holds at a target."""

    type: Literal["GPULoad", "GPUUtilization", "GPUMemory"]
    """GPULoad: audio demanded over audio sustained. GPUUtilization: NVML's, over 30 s. GPUMemory: the engine's
    blocks in use over their budget."""
    target_percent: Annotated[int, Field(ge=1, le=100)] = 80


Signals = Annotated[list[Signal], Field(min_length=1, max_length=3, json_schema_extra=list_map("type"))]


class EngineOverrides(Model):
    """What differs from spec.engine in one pool."""

    precision: Literal["Auto", "FP32", "FP16", "BF16"] | None = None
    max_running: Annotated[int, Field(ge=0, le=4096)] | None = None
    max_batch_frames: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    memory_guard_percent: Annotated[int, Field(ge=1, le=100)] | None = None


class Pool(Model):
    """Workers of one card: one Deployment and one autoscaler."""

    model_config = ConfigDict(json_schema_extra=cel(("has(self.concurrency) != has(self.workers)", _SIZE)))

    name: Annotated[DnsLabel, Field(max_length=20)]
    card: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
    """A row of the card catalogue, e.g. `T4`, `A10`, `A100` (40 GB), `CPU`."""
    concurrency: Concurrency | None = None
    workers: Workers | None = None
    streams_per_worker: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Audio seconds per second that one worker sustains; from the card where it is not set."""
    gpu_resource_name: Annotated[str, Field(min_length=1, max_length=317, pattern=r"^[^/]+/[^/]+$")] | None = None
    """Extended resource of which a worker takes one, e.g. `nvidia.com/gpu.shared`; from the card by default."""
    runtime_class_name: DnsSubdomain | None = None
    resources: Resources = Resources()
    node_selector: NodeSelector = Field(default_factory=dict)
    """Names the pool's nodes; where it is given, the card's node labels are not asked for."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = Field(default_factory=list)
    """Added to the card's."""
    engine: EngineOverrides = EngineOverrides()
    """Laid over spec.engine, field by field."""
    signals: Signals | None = None
    """In place of spec.autoscaling.signals."""
    pod_template: PodTemplate = PodTemplate()
    """Laid over spec.podTemplate."""

    @model_validator(mode="after")
    def sized_once(self) -> Self:
        if (self.concurrency is None) == (self.workers is None):
            raise ValueError(_SIZE)
        if self.signals is not None:
            _unique("signals", "type", [signal.type for signal in self.signals])
        return self


class Engine(Model):
    """How a worker computes."""

    precision: Literal["Auto", "FP32", "FP16", "BF16"] = "Auto"
    """Auto: the card's. Nothing lowers it at run time."""
    max_running: Annotated[int, Field(ge=0, le=4096)] = 0
    """Sequences in the language model's batch at most; 0: from the card."""
    max_batch_frames: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Mel frames in one flow batch at most; 0: from the card."""
    memory_guard_percent: Annotated[int, Field(ge=1, le=100)] = 85
    """Above this share of the GPU's memory new work waits until running work has finished."""


class Autoscaling(Model):
    """What sets the number of workers between a pool's min and max."""

    provider: Literal["HPA", "None"] = "HPA"
    """HPA: a HorizontalPodAutoscaler per pool. None: the number stays where it is set, within min and max."""
    signals: Signals = [Signal(type="GPULoad")]  # noqa: RUF012
    """The largest proposal wins."""
    behavior: ScalingBehavior = ScalingBehavior()

    @model_validator(mode="after")
    def signals_once(self) -> Self:
        _unique("signals", "type", [signal.type for signal in self.signals])
        return self


class Rollout(Model):
    """How workers are replaced when their template changes."""

    type: Literal["InPlace", "Surge", "Recreate"] = "InPlace"
    """InPlace: one worker goes before its replacement comes; needs no spare GPU. Surge: the replacement comes first.
    Recreate: all go, then all come; for pools of one worker on full clusters."""


class Startup(Model):
    """How long a worker may take to load its model."""

    timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """From the card where it is not set."""


class Drain(Model):
    """How long running streams may take to finish when a worker stops."""

    timeout_seconds: Annotated[int, Field(ge=0, le=86_400)] = 330


class Disruption(Model):
    """How many workers of a pool may be taken away at once on purpose, e.g. by the drain of a node."""

    max_unavailable: Annotated[int, Field(ge=1, le=5_000)] = 1


class Observability(Model):
    log_level: Literal["Debug", "Info", "Warning", "Error"] = "Info"


class Spec(Model):
    model_config = ConfigDict(json_schema_extra=cel(AUTH_RULE))

    paused: bool = False
    """While true the operator changes no child of this service; status is kept up to date."""
    image: Annotated[str, Field(max_length=1024)] = ""
    """Worker image; from the operator's settings, in the card's variant, where it is empty."""
    model: ModelSpec
    voices: Voices = Voices()
    pools: Annotated[list[Pool], Field(min_length=1, max_length=16, json_schema_extra=list_map("name"))]
    engine: Engine = Engine()
    autoscaling: Autoscaling = Autoscaling()
    rollout: Rollout = Rollout()
    startup: Startup = Startup()
    drain: Drain = Drain()
    disruption: Disruption = Disruption()
    service: Endpoint = Endpoint()
    auth: Auth | None = None
    observability: Observability = Observability()
    pod_template: PodTemplate = PodTemplate()
    """For what no other field says."""

    @model_validator(mode="after")
    def pools_once(self) -> Self:
        _unique("pools", "name", [pool.name for pool in self.pools])
        return self

    @model_validator(mode="after")
    def auth_is_said(self) -> Self:
        if self.auth is None and self.service.leaves_cluster:
            raise ValueError(AUTH_RULE[1])
        return self


class Condition(Model):
    """As metav1.Condition."""

    type: Annotated[str, Field(max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(max_length=1024)]
    message: Annotated[str, Field(max_length=32768)]
    observed_generation: int
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class WorkerCount(Model):
    desired: int
    ready: int
    min: int
    max: int


class StreamsPerWorker(Model):
    value: int
    from_: Annotated[Literal["Catalogue", "Spec", "Measured"], Field(alias="from")]
    """Where the figure is from: the card catalogue, this service's spec, or the median of what its workers measured."""


class PoolStatus(Model):
    name: str
    card: str
    workers: WorkerCount
    capacity_streams: int
    """Streams that the ready workers carry."""
    streams_per_worker: StreamsPerWorker
    limited_by: str
    """What keeps the pool from having more workers ready, e.g. `MaxReached`, `Unschedulable`; empty: nothing."""


class Status(Model):
    observed_generation: int | None = None
    url: str | None = None
    """Base of the OpenAI API inside the cluster, without `/v1`."""
    capacity_streams: int | None = None
    workers: str | None = None
    """Ready and desired workers of all pools, e.g. `9/9`."""
    cards: str | None = None
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=list_map("type"))] | None = None
    pools: Annotated[list[PoolStatus], Field(max_length=16, json_schema_extra=list_map("name"))] | None = None


class Metadata(Model):
    """The part of an object's metadata that decisions need; the rest is ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=NAME_MAX, pattern=NAME_PATTERN)]
    namespace: str = "default"
    uid: str = ""
    generation: int = 0


class CosyVoiceService(Model):
    """A CosyVoice text-to-speech service, sized by concurrent streams and GPU card."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"self.metadata.name.size() <= {NAME_MAX} && self.metadata.name.matches('{NAME_PATTERN}')",
                f"metadata.name must be at most {NAME_MAX} characters: lower case letters, digits and '-', "
                "beginning with a letter (it is also the name of the Service)",
            )
        )
    )

    api_version: Literal["tts.cosyvoice.io/v1alpha1"]
    kind: Literal["CosyVoiceService"]
    metadata: Metadata
    spec: Spec

    @classmethod
    def parse(cls, manifest: dict[str, Any]) -> Self:
        """The service in a manifest or a watch event, without its status. Raises SpecError."""
        try:
            return cls.model_validate({key: value for key, value in manifest.items() if key != "status"})
        except ValidationError as error:
            raise SpecError.of(error) from error
