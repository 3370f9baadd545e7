"""Voices on real files, made by the tiny model's real frontend."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from cosyvoice_worker.engine.recorded_voices import RecordedVoices
from cosyvoice_worker.live_files import Reloads
from tests.unit.engine.tiny import model


def recording(seconds: float = 0.6, rate: int = 24000, pitch: float = 200.0) -> bytes:
    """A wav of a tone."""
    wave = 0.3 * np.sin(2 * np.pi * pitch * np.arange(int(seconds * rate)) / rate)
    file = io.BytesIO()
    soundfile.write(file, wave, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


def voices_json(*presets: tuple[str, str, Path], **aliases: str) -> str:
    """A `contract.VoicesConfig`."""
    preset = [{"name": name, "text": text, "file": str(file)} for name, text, file in presets]
    return json.dumps({"preset": preset, "aliases": aliases})


@pytest.fixture
def recorded() -> RecordedVoices:
    return RecordedVoices(model().recordings)


@pytest.fixture
def reloads() -> Reloads:
    return Reloads()
