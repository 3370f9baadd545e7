"""One worker from start to exit: load the model, warm up, serve, drain. The phase says where it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from cosyvoice_contract import LoadReport
from cosyvoice_worker.api_keys import ApiKeys
from cosyvoice_worker.device.nvml import Gpu, GpuReading, UtilizationMeter
from cosyvoice_worker.engine.engine import Counters
from cosyvoice_worker.engine.recorded_voices import RecordedVoices
from cosyvoice_worker.engine.requests import Refused, Voice
from cosyvoice_worker.live_files import Reloads, follow
from cosyvoice_worker.scheduling.service import SpeechService
from cosyvoice_worker.settings import Settings
from cosyvoice_worker.voices.catalogue import VoiceCatalogue
from cosyvoice_worker.voices.presets import PresetVoices
from cosyvoice_worker.voices.store import VoiceStore

log = logging.getLogger(__name__)

Phase = Literal["Starting", "Loading", "WarmingUp", "Ready", "Draining", "Stopped"]

_RETRY_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Engine:
    """What a loaded model comes to: the service that speaks and the voices it speaks in."""

    service: SpeechService
    voices: tuple[Voice, ...]
    """The model's own, or the image's for a model that brings none; at least one, the first is the default."""
    recorded: RecordedVoices
    """Makes voices of recordings."""
    gpu: Gpu | None
    """None on the CPU."""


class Worker:
    """Owned by the event loop of the server; `load` builds the engine, in this loop, with its slow parts in threads."""

    def __init__(self, settings: Settings, load: Callable[[Settings], Awaitable[Engine]]) -> None:
        self.settings = settings
        self.started_at = time.time()
        self.phase: Phase = "Starting"
        self.leaving = asyncio.Event()
        """Set when it drains: sessions come to their end."""
        self.on_ready: Callable[[float], None] = lambda seconds: None
        self._load = load
        self._engine: Engine | None = None
        self._utilization: UtilizationMeter | None = None
        self._catalogue: VoiceCatalogue | None = None
        self.reloads = Reloads()
        keys = settings.api_keys_dir
        self.api_keys = None if keys is None else ApiKeys(keys, self.reloads)
        """None: everybody may speak."""
        self._following: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load and warm up. Returns when the worker is ready; raises what the loading raised."""
        started = time.perf_counter()
        self.phase = "Loading"
        if self.api_keys is not None:
            self._following.append(asyncio.create_task(follow(self.api_keys.refresh)))
        engine = await self._load(self.settings)
        if engine.gpu is not None:
            gpu = engine.gpu
            self._utilization = UtilizationMeter(lambda: gpu.read().utilization)
            self._utilization.start()
        self.phase = "WarmingUp"
        try:
            catalogue = self._catalogue_of(engine)
            await asyncio.to_thread(catalogue.refresh)
            await engine.service.start(engine.voices[0])
        except BaseException:  # cancelled by SIGTERM, or it cannot speak: its thread must not outlive it
            await engine.service.stop()
            raise
        self._engine, self._catalogue = engine, catalogue
        self._following.append(asyncio.create_task(follow(catalogue.refresh)))
        self.phase = "Ready"
        seconds = time.perf_counter() - started
        self.on_ready(seconds)
        names = [voice.name for voice in catalogue.book.voices]
        log.info("ready", extra={"seconds": round(seconds, 2), "voices": names})

    def _catalogue_of(self, engine: Engine) -> VoiceCatalogue:
        folder = self.settings.voice_store_dir
        presets = PresetVoices(self.settings.voices_file, engine.recorded, self.reloads)
        store = None if folder is None else VoiceStore(folder, self.reloads)
        return VoiceCatalogue(engine.voices, presets, store, engine.recorded, self.reloads)

    async def drain(self) -> bool:
        """Take nothing more, let what runs finish. True when all did within the drain time."""
        was_ready, self.phase = self._engine is not None, "Draining"
        self.leaving.set()
        if not was_ready:
            return True
        assert self._engine is not None
        return await self._engine.service.drain(self.settings.drain_seconds)

    async def stop(self) -> None:
        self.phase = "Stopped"
        for task in self._following:
            task.cancel()
        if self._utilization is not None:
            self._utilization.stop()
        if self._engine is not None:
            await self._engine.service.stop()

    @property
    def ready(self) -> bool:
        return self.phase == "Ready" and self.alive

    @property
    def alive(self) -> bool:
        """False means restart: the engine is stuck. Loading has the start-up probe's patience."""
        return self._engine is None or self.phase == "Stopped" or self._engine.service.alive

    def ready_service(self) -> SpeechService:
        """The service, or `Refused` when it takes no requests: NotReady, Draining."""
        if self.phase in ("Draining", "Stopped"):
            raise Refused("Draining", _RETRY_SECONDS)
        if self._engine is None:
            raise Refused("NotReady", _RETRY_SECONDS)
        return self._engine.service

    def voices(self) -> VoiceCatalogue:
        """Or `Refused`, as above."""
        self.ready_service()
        assert self._catalogue is not None
        return self._catalogue

    def recorded_voices(self) -> RecordedVoices:
        """Or `Refused`, as above."""
        self.ready_service()
        assert self._engine is not None
        return self._engine.recorded

    def gpu_reading(self) -> GpuReading | None:
        return None if self._engine is None or self._engine.gpu is None else self._engine.gpu.read()

    def engine_counters(self) -> Counters | None:
        """None before the model is loaded."""
        return None if self._engine is None else self._engine.service.counters

    def load_report(self) -> LoadReport | None:
        """None before the model is loaded."""
        if self._engine is None:
            return None
        reading = self._engine.service.reading()
        return LoadReport(
            pool_card=self.settings.card,
            demand=reading.demand,
            capacity=reading.capacity,
            capacity_from="Measured" if reading.capacity_measured else "Catalogue",
            gpu_load=reading.demand / reading.capacity,
            gpu_utilization=None if self._utilization is None else self._utilization.average(),
            gpu_memory=reading.kv_blocks_used / max(1, reading.kv_blocks_total),
            running=reading.running,
            queued=reading.queued,
            draining=self.phase == "Draining",
        )
