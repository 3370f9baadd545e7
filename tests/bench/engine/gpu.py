"""`python -m tests.bench.engine.gpu`: the engine on a GPU, in at most some minutes; writes build/bench/gpu.json.

Per precision: audio seconds per second, first-audio percentiles, streams that ran dry and utilisation at several
numbers of streams, with a random model of the official size; and how far tokens and waves of the recorded tiny models
are from those that the CPU gives in float32. In float32 also the golden groups of both recordings. Builds nothing.
Without a GPU it says so and ends; `--device cpu` shows that the script itself works.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cosyvoice_worker.bench.engine import measure
from cosyvoice_worker.device.nvml import Gpu, UtilizationMeter
from cosyvoice_worker.device.select import DTYPES, select_device
from cosyvoice_worker.engine import random_model
from cosyvoice_worker.engine.engine import Audio, Failed
from cosyvoice_worker.engine.frontend.job import Frontend
from cosyvoice_worker.engine.modules import build
from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.requests import SynthesisRequest, Voice
from cosyvoice_worker.engine.sizing import size_for
from cosyvoice_worker.models.directory import open_directory
from cosyvoice_worker.scheduling.service import make_engine
from tests.golden.__main__ import compare

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "golden" / "data"
STREAMS = (1, 4, 16, 64)
LONGEST_SECONDS = 400
"""No further measurement begins after that, so that the whole stays below eight minutes."""


def under_load(model: LoadedModel, size: str, streams: int) -> dict[str, Any]:
    """The worker's own bench, streamed, with the card's utilisation meanwhile (None without one)."""
    on_gpu = model.device.type == "cuda"
    gpu = Gpu(str(torch.cuda.get_device_properties(model.device).uuid)) if on_gpu else None
    meter = UtilizationMeter(lambda: gpu.read().utilization) if gpu else None
    if meter:
        meter.start()
    try:
        report = asdict(measure(model, size, streams, streaming=True))
    finally:
        if meter:
            meter.stop()
    return report | {
        "utilization": meter.average() if meter else None,
        "gpu_memory_peak_mib": torch.cuda.max_memory_allocated(model.device) / 2**20 if on_gpu else None,
    }


def spoken(model: LoadedModel, text: str) -> tuple[list[int], np.ndarray]:
    """Tokens and samples of one seeded request, sentence after sentence."""
    sizing = size_for(model, max_running=1)
    engine = make_engine(model, sizing)
    frontend = Frontend(model.tokenizer, model.config.version, sizing.longest, sizing.max_speech_tokens)
    voice = next(iter(model.voices.values()), Voice("bench", torch.zeros(192)))
    job = frontend.job(SynthesisRequest("agreement", text, voice, seed=7, streaming=False), time.monotonic())
    engine.add(job)
    pieces: list[np.ndarray] = []
    while engine.jobs:
        for event in engine.step():
            if isinstance(event, Failed):
                raise RuntimeError(event.reason)
            if isinstance(event, Audio):
                pieces.append(event.pcm)
    return [token for sentence in job.sentences for token in sentence.tokens], np.concatenate(pieces)


def agreement(directory: Path, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The same request on the CPU in float32 and on `device`: equal tokens in front, and the waves' difference.

    The wave is compared only where all tokens are equal; the draws are the same on every device.
    """
    text = "The train to the city leaves at seven in the evening."
    expected, wave = spoken(build.load(open_directory(directory), torch.device("cpu")), text)
    tokens, heard = spoken(build.load(open_directory(directory), device, dtype), text)
    equal = next((i for i, (a, b) in enumerate(zip(expected, tokens, strict=False)) if a != b), len(expected))
    same = tokens == expected
    return {
        "tokens": len(expected),
        "equal_tokens_in_front": equal,
        "wave_rms_difference": float(np.sqrt(np.mean((wave - heard) ** 2))) if same else None,
        "wave_rms": float(np.sqrt(np.mean(wave**2))),
    }


def golden_groups(version: int, device: str) -> dict[str, Any]:
    """How the recorded groups compare on the device in float32: the count, and each that is beyond its tolerance."""
    prefix = str(RECORDED / f"golden-v{version}")
    lines = list(compare(str(RECORDED / f"tiny-cosyvoice{version}"), prefix, select_device(device, "fp32")[0]))  # type: ignore[arg-type]
    beyond = {line.name: [line.difference, line.tolerance] for line in lines if not line.passed}
    print(f"golden, CosyVoice{version}: {len(lines) - len(beyond)} of {len(lines)} comparisons hold", flush=True)
    return {"compared": len(lines), "beyond_tolerance": beyond}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.gpu", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--size", choices=list(random_model.SIZES), default="Full")
    parser.add_argument("--precisions", nargs="+", choices=list(DTYPES), default=["fp16", "bf16", "fp32"])
    parser.add_argument("--streams", nargs="+", type=int, default=list(STREAMS))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "gpu.json")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: skipped")
        return
    began = time.monotonic()
    loads: list[dict[str, Any]] = []
    agreements: list[dict[str, Any]] = []
    golden = {f"tiny-cosyvoice{version}": golden_groups(version, chosen.device) for version in (2, 3)}
    with tempfile.TemporaryDirectory() as folder:
        path = random_model.write(Path(folder) / chosen.size, chosen.size, 0).path
        for precision in chosen.precisions:
            device, dtype = select_device(chosen.device, precision)
            for recorded in ("tiny-cosyvoice2", "tiny-cosyvoice3"):
                found = agreement(RECORDED / recorded, device, dtype)
                agreements.append({"model": recorded, "precision": precision} | found)
                print(json.dumps(agreements[-1]), flush=True)
            model = build.load(open_directory(path), device, dtype)
            for streams in chosen.streams:
                if time.monotonic() - began < LONGEST_SECONDS:
                    loads.append({"precision": precision} | under_load(model, chosen.size, streams))
                    print(json.dumps(loads[-1]), flush=True)
                else:
                    print(f"{precision}, {streams} streams: left out, the time is up")
    result = {"torch": torch.__version__, "golden": golden, "load": loads, "agreement": agreements}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(result, indent=1))
    print(f"wrote {chosen.out} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
