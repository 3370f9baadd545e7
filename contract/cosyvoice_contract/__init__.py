"""The names that operator and worker both rely on: the one thing they share.

The operator writes the environment variables, ports and probe paths into pod templates and reads the load report;
the worker reads the variables, listens on the port and serves the report. Nothing else crosses between the two.
"""

from typing import Final, Literal, TypedDict

# --- how the operator configures a worker (environment) -------------------------------------------------------------

ENV_PREFIX: Final = "COSYVOICE_"
"""Every setting of the worker is `COSYVOICE_<FIELD>`; the fields are `cosyvoice_worker.settings.Settings`."""

ENV_MODEL_NAME: Final = "COSYVOICE_MODEL_NAME"
"""Name of the model in `/v1/models` and in responses, e.g. `CosyVoice2-0.5B`."""
ENV_MODEL_DIR: Final = "COSYVOICE_MODEL_DIR"
"""An official CosyVoice model directory inside the container."""
ENV_MODEL_BUILTIN: Final = "COSYVOICE_MODEL_BUILTIN"
"""Name of a model that the image carries (`DemoEnglish`); exclusive with MODEL_DIR and MODEL_RANDOM."""
ENV_MODEL_RANDOM: Final = "COSYVOICE_MODEL_RANDOM"
"""`<size>:<seed>`, e.g. `Tiny:0`: seeded random weights, for tests; exclusive with the two above."""
ENV_CARD: Final = "COSYVOICE_CARD"
"""Name of the card catalogue row that the pool asked for (`T4`, `A10`, `A100`, `CPU`, ...)."""
ENV_DEVICE: Final = "COSYVOICE_DEVICE"
"""`cuda` or `cpu`. A worker told `cuda` that finds no GPU does not start; it never falls back."""
ENV_PRECISION: Final = "COSYVOICE_PRECISION"
"""`fp32`, `fp16` or `bf16`."""
ENV_STREAMS: Final = "COSYVOICE_STREAMS"
"""The catalogue's (or the user's) streams per worker: the first value of capacity, until it is measured. Audio-s/s."""
ENV_MAX_RUNNING: Final = "COSYVOICE_MAX_RUNNING"
"""Sequences in the LLM batch at most; 0 = the worker's own choice for its device."""
ENV_MAX_BATCH_FRAMES: Final = "COSYVOICE_MAX_BATCH_FRAMES"
"""Mel frames in one flow batch at most; 0 = the worker's own choice for its device."""
ENV_DRAIN_SECONDS: Final = "COSYVOICE_DRAIN_SECONDS"
"""How long running streams may take to finish after SIGTERM."""
ENV_MEMORY_GUARD_PERCENT: Final = "COSYVOICE_MEMORY_GUARD_PERCENT"
ENV_LOG_LEVEL: Final = "COSYVOICE_LOG_LEVEL"

ENV_LOG_TEXTS: Final = "COSYVOICE_LOG_TEXTS"
"""`true` puts the texts that clients send into the logs; otherwise no text is ever logged."""
ENV_CHUNK_MILLIS: Final = "COSYVOICE_CHUNK_MILLIS"
"""Size of the pieces that a streamed response is written in, in milliseconds of audio."""
ENV_CUDA_STREAMS: Final = "COSYVOICE_CUDA_STREAMS"
"""CUDA streams at most for the overlap of LLM, flow and vocoder; unused on a CPU."""
ENV_API_KEYS_DIR: Final = "COSYVOICE_API_KEYS_DIR"
"""A directory of API keys, one file a key name, one key a line. Set: a request needs one of them, and an empty or
missing directory refuses everybody. Unset: no authentication. Read again when it changes."""
ENV_VOICES_FILE: Final = "COSYVOICE_VOICES_FILE"
"""A `VoicesConfig` as JSON; a missing file is one without voices. Read again when it changes."""
ENV_VOICE_STORE_DIR: Final = "COSYVOICE_VOICE_STORE_DIR"
"""The directory, shared by all workers, of the voices that clients upload. Unset: uploads are refused."""

API_KEYS_DIR: Final = "/etc/cosyvoice/api-keys"
"""Where the operator mounts the Secret with the API keys."""
VOICES_FILE: Final = "/etc/cosyvoice/voices/voices.json"
"""Where the operator mounts the ConfigMap that it makes of `spec.voices`, under the key `voices.json`."""
VOICE_SOURCES_DIR: Final = "/etc/cosyvoice/voice-sources"
"""Where each ConfigMap or Secret that a preset voice takes its recording from is mounted whole, as `configmap-<name>`
or `secret-<name>`."""
VOICE_STORE_DIR: Final = "/var/lib/cosyvoice/voices"
"""Where the claim of `spec.voices.store` is mounted, read-write."""


class PresetVoice(TypedDict):
    """A voice that every worker knows: a recording and what is said in it."""

    name: str
    text: str
    file: str
    """Absolute path of the recording, any audio format that `ref_audio` takes."""


class VoicesConfig(TypedDict):
    """Content of `VOICES_FILE`."""

    preset: list[PresetVoice]
    aliases: dict[str, str]
    """Another name of a voice -> the voice."""


# --- how the operator has a model fetched (`cosyvoice-worker fetch-model`) ------------------------------------------

ENV_FETCH_PREFIX: Final = "COSYVOICE_FETCH_"
"""The fields are `cosyvoice_worker.hubs.command.FetchSettings`: HUB, REPO, REVISION, TARGET, PORT."""
ENV_HUB_TOKEN: Final = "HF_TOKEN"  # noqa: S105 - the name of one
"""The hub's token, from a Secret. In no argument and no setting, so that no log has it."""
FETCH_CONTAINER: Final = "fetch-model"
"""Name of the container, in the Job that fills a cache and before a worker that has none."""
PATH_PROGRESS: Final = "/progress"


class FetchProgress(TypedDict):
    """Body of `GET /progress` of a download, on WORKER_PORT."""

    revision: str
    """The commit; empty until it is resolved."""
    done_bytes: int
    total_bytes: int


class FetchedModel(TypedDict):
    """What a download that succeeded leaves as its termination message, as JSON."""

    revision: str
    bytes: int


BUILTIN_MODELS_DIR: Final = "/usr/share/cosyvoice/models"
"""Where the worker image carries its built-in models, one official model directory each."""
DEFAULT_PROMPT_DIR: Final = "/usr/share/cosyvoice/prompts"
"""Where the worker image carries `default.wav` and `default.txt`, the voice for models that bring none."""

# --- what a worker serves -------------------------------------------------------------------------------------------

WORKER_CONTAINER: Final = "worker"
"""Name of the main container of a worker pod."""
WORKER_GID: Final = 65532
"""The group that the worker image runs as."""
WORKER_PORT: Final = 8000
PATH_LIVE: Final = "/healthz"
PATH_READY: Final = "/readyz"
PATH_METRICS: Final = "/metrics"
PATH_LOAD: Final = "/load"
PRESTOP_SECONDS: Final = 5
"""A terminating worker serves on for this long while endpoints change, before it admits no more."""

CapacityFrom = Literal["Catalogue", "Measured"]


class LoadReport(TypedDict):
    """Body of `GET /load`, JSON. What the metrics API aggregates and the operator's status shows.

    Before the model is loaded the endpoint answers 503 with no body: no reading is not a reading of zero.
    """

    pool_card: str
    demand: float
    """Audio seconds per second demanded of this worker: running and queued requests, backlog over 30 s, and what was
    refused in the last 30 s. Idle is an explicit 0."""
    capacity: float
    """Audio seconds per second that this worker sustains; > 0."""
    capacity_from: CapacityFrom
    gpu_load: float
    """demand / capacity; may exceed 1."""
    gpu_utilization: float | None
    """NVML utilisation averaged over 30 s, 0..1; None without a GPU."""
    gpu_memory: float
    """KV blocks and workspace in use over their budget, 0..1."""
    running: int
    queued: int
    draining: bool


# --- metrics that scaling reads (custom.metrics.k8s.io) -------------------------------------------------------------

METRIC_GPU_LOAD: Final = "gpu_load"
METRIC_GPU_UTILIZATION: Final = "gpu_utilization"
METRIC_GPU_MEMORY: Final = "gpu_memory"
SIGNAL_METRICS: Final = {
    "GPULoad": METRIC_GPU_LOAD,
    "GPUUtilization": METRIC_GPU_UTILIZATION,
    "GPUMemory": METRIC_GPU_MEMORY,
}
"""Signal type in the API -> name of the Object metric on the pool's Deployment; each is the sum over its workers."""

# --- labels and annotations -----------------------------------------------------------------------------------------

GROUP: Final = "tts.cosyvoice.io"
LABEL_SERVICE: Final = "tts.cosyvoice.io/service"
LABEL_POOL: Final = "tts.cosyvoice.io/pool"
LABEL_CARD: Final = "tts.cosyvoice.io/card"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "cosyvoice-operator"
ANNOTATION_SIGNAL_TARGETS: Final = "tts.cosyvoice.io/signal-targets"
"""On a pool's Deployment: JSON object metric name -> target in percent, e.g. `{"gpu_load": 80}`. A silent worker is
counted as exactly at its target by the metrics API, which therefore must know it."""
