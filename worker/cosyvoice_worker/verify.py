"""What runs here: versions of Python, torch, CUDA and the driver, the GPUs, the model. For a look into a container."""

from __future__ import annotations

import platform

import pynvml
import torch

from cosyvoice_worker.device.select import select_device
from cosyvoice_worker.models.directory import open_directory
from cosyvoice_worker.settings import Settings
from cosyvoice_worker.startup import model_path, open_gpu


def print_versions() -> None:
    """Never fails: what is not there is said."""
    _say("python", platform.python_version())
    _say("torch", torch.__version__)
    _say("cuda", torch.version.cuda or "none (CPU build of torch)")
    _say("cudnn", str(torch.backends.cudnn.version() or "none"))  # type: ignore[no-untyped-call]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _say("driver", f"none ({error})")
        return
    try:
        _say("driver", pynvml.nvmlSystemGetDriverVersion())
        for index in range(pynvml.nvmlDeviceGetCount()):
            _say(f"gpu {index}", _gpu(index))
    except pynvml.NVMLError as error:
        _say("gpus", f"unknown ({error})")


def _gpu(index: int) -> str:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total / (1 << 30)
        return f"{pynvml.nvmlDeviceGetName(handle)}, {memory:.0f} GiB"
    except pynvml.NVMLError as error:
        return f"not told ({error})"


def print_model(settings: Settings) -> None:
    """Raises what the start would raise."""
    device, _ = select_device(settings.device, settings.precision)
    open_gpu(settings, device)
    _say("device", f"{device}, {settings.precision}" + (f", card {settings.card}" if settings.card else ""))
    if settings.model_random:
        _say("model", f"{settings.model_random}, random")
        return
    directory = open_directory(model_path(settings))
    _say("model", f"{settings.served_name}: CosyVoice{directory.config.version}, {directory.config.sample_rate} Hz")
    _say("directory", str(directory.path))


def _say(name: str, value: str) -> None:
    print(f"{name:10} {value}")
