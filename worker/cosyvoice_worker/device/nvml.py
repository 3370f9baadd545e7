"""The GPU's own readings, through NVML. What a device or a driver does not tell is None, never 0."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import pynvml

WINDOW_SECONDS: Final = 30.0
"""Utilisation is averaged over this window: one decoding stream makes single samples jump between 0 and 100."""
_SAMPLE_SECONDS: Final = 1.0

_T = TypeVar("_T")


class NvmlError(Exception):
    """NVML cannot be used; the text says why and the mend."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    utilization: float | None
    """0..1, now; None under MIG."""
    memory_used: int | None
    """Bytes, of all processes on the device."""
    temperature: int | None
    """Degrees Celsius."""
    power: float | None
    """Watts."""
    throttle_reasons: tuple[str, ...] | None
    """Why clocks are held down, e.g. `SwThermalSlowdown`; empty when they are not."""


_THROTTLE_REASONS: Final = {
    "SwPowerCap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "HwSlowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "SwThermalSlowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
    "HwThermalSlowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "HwPowerBrakeSlowdown": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
}


class Gpu:
    """One device, opened by the uuid that torch computes on, so that both always mean the same card."""

    def __init__(self, uuid: str) -> None:
        """`uuid` without prefix, as `torch.cuda.get_device_properties(0).uuid` prints it."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlError(
                f"NVML does not start ({error}); the container needs the driver's libnvidia-ml.so.1: "
                f"set NVIDIA_DRIVER_CAPABILITIES=compute,utility and the runtime class `nvidia`"
            ) from None
        self._handle = self._open(uuid)
        try:
            self.product: str = pynvml.nvmlDeviceGetName(self._handle)
            self.driver: str = pynvml.nvmlSystemGetDriverVersion()
            self.memory_total: int = int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).total)
        except pynvml.NVMLError as error:
            raise NvmlError(
                f"NVML does not tell what the GPU {uuid} is ({error}), so that it cannot be checked against the card; "
                f"give the container the rights that the device plugin and the runtime class `nvidia` give"
            ) from None

    @staticmethod
    def _open(uuid: str) -> object:
        for prefix in ("GPU-", "MIG-"):
            try:
                return pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
            except pynvml.NVMLError as error:
                last = error
        raise NvmlError(f"NVML does not know the GPU {uuid} that PyTorch computes on ({last})")

    def read(self) -> GpuReading:
        handle = self._handle
        reasons = _told(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        return GpuReading(
            utilization=_told(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100),
            memory_used=_told(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)),
            temperature=_told(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
            power=_told(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            throttle_reasons=None
            if reasons is None
            else tuple(name for name, bit in _THROTTLE_REASONS.items() if reasons & bit),
        )


def _told(question: Callable[[], _T]) -> _T | None:
    """The answer, or None where the device (MIG) or our permissions do not give one."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


class UtilizationMeter:
    """The average of the last 30 s, sampled once a second by a thread of its own."""

    def __init__(self, sample: Callable[[], float | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._sample = sample
        self._clock = clock
        self._samples: deque[tuple[float, float]] = deque()
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            self.take()

    def take(self) -> None:
        """Take one sample now."""
        value = self._sample()
        if value is not None:
            with self._lock:
                self._samples.append((self._clock(), value))

    def average(self) -> float | None:
        """0..1; None when the last 30 s have no sample."""
        since = self._clock() - WINDOW_SECONDS
        with self._lock:
            while self._samples and self._samples[0][0] < since:
                self._samples.popleft()
            if not self._samples:
                return None
            return sum(value for _, value in self._samples) / len(self._samples)
