"""From settings to an engine: device, card, model directory, networks, voices. A fault is named and ends the start."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

import torch

from cosyvoice_worker.device.card import card_mismatch
from cosyvoice_worker.device.nvml import Gpu
from cosyvoice_worker.device.select import DeviceError, select_device
from cosyvoice_worker.engine import random_model
from cosyvoice_worker.engine.modules import build
from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.recorded_voices import RecordedVoices
from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.lifecycle import Engine
from cosyvoice_worker.models.directory import ModelDirectoryError, open_directory
from cosyvoice_worker.scheduling.service import Options, SpeechService
from cosyvoice_worker.settings import Settings

log = logging.getLogger(__name__)


def model_path(settings: Settings) -> Path:
    """The directory that the settings name; a random model is written to a temporary one.

    Raises ModelDirectoryError for a built-in model that the image lacks and an unknown size of random model.
    """
    if settings.model_dir is not None:
        return settings.model_dir
    path = settings.builtin_models_dir / settings.model_builtin
    if not path.is_dir():
        present = sorted(entry.name for entry in settings.builtin_models_dir.glob("*/"))
        raise ModelDirectoryError(
            f"COSYVOICE_MODEL_BUILTIN={settings.model_builtin}: {settings.builtin_models_dir} has "
            f"{', '.join(present) or 'no models'}; name one of those"
        )
    return path


def open_gpu(settings: Settings, device: torch.device) -> Gpu | None:
    """The GPU's meters; None on the CPU. Raises DeviceError when it is not the card that the pool was sized for."""
    if device.type != "cuda":
        return None
    gpu = Gpu(str(torch.cuda.get_device_properties(device).uuid))
    mismatch = card_mismatch(settings.card, gpu.product, gpu.memory_total)
    if mismatch:
        raise DeviceError(f"COSYVOICE_CARD={settings.card}: {mismatch}")
    log.info("gpu", extra={"product": gpu.product, "driver": gpu.driver, "memory_bytes": gpu.memory_total})
    return gpu


async def load_engine(settings: Settings) -> Engine:
    """Raises DeviceError, NvmlError, ModelDirectoryError, TensorFileError, TokenizerError, RecordingError."""
    device, dtype = select_device(settings.device, settings.precision)
    gpu = open_gpu(settings, device)
    model = await asyncio.to_thread(_load_model, settings, device, dtype)
    service = SpeechService(
        model,
        Options(
            model_name=settings.served_name,
            streams=settings.streams,
            max_running=settings.max_running,
            max_batch_frames=settings.max_batch_frames,
            max_queued=settings.max_queued,
            fixed_batch=settings.fixed_batch,
            queue_seconds=settings.queue_seconds,
            memory_guard_percent=settings.memory_guard_percent,
        ),
    )
    recorded = RecordedVoices(model.recordings)
    voices = tuple(service.voices.values()) or (await asyncio.to_thread(default_voice, settings, recorded),)
    return Engine(service, voices, recorded, gpu)


def default_voice(settings: Settings, recorded: RecordedVoices) -> Voice:
    """A voice of the recording that the image carries, for models that bring none."""
    folder = settings.default_prompt_dir
    try:
        return recorded.voice((folder / "default.wav").read_bytes(), (folder / "default.txt").read_text(), "default")
    except FileNotFoundError as error:
        raise ModelDirectoryError(
            f"the model brings no voice (spk2info.pt) and there is no {error.filename}; "
            f"set COSYVOICE_DEFAULT_PROMPT_DIR to a folder with default.wav and default.txt"
        ) from None


def _load_model(settings: Settings, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    if not settings.model_random:
        return build.load(open_directory(model_path(settings)), device, dtype)
    size, _, seed = settings.model_random.partition(":")
    with tempfile.TemporaryDirectory(prefix="random-model-") as folder:
        try:
            directory = random_model.write(Path(folder), size, int(seed))
        except ModelDirectoryError as error:
            raise ModelDirectoryError(f"COSYVOICE_MODEL_RANDOM={settings.model_random}: {error}") from None
        return build.load(directory, device, dtype)
