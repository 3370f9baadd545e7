"""Measures the engine on this machine: `python -m cosyvoice_worker.bench.engine MODEL_DIR --streams 16`.

All streams arrive at once, in the model's first voice; each is a short English text. Reports audio seconds per second,
percentiles of the time to first audio, gaps in playback (a listener who starts at the first audio would have run dry)
and where the time of a step went. `--json FILE` writes the figures, too. They hold for this machine at this moment.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from cosyvoice_worker.device.select import DTYPES
from cosyvoice_worker.engine.engine import Audio, Engine, Failed
from cosyvoice_worker.engine.frontend.job import Frontend
from cosyvoice_worker.engine.modules import build
from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.requests import SynthesisRequest, Voice
from cosyvoice_worker.engine.sizing import size_for
from cosyvoice_worker.models.directory import open_directory
from cosyvoice_worker.scheduling.service import make_engine

TEXTS = (
    "Good morning, how are you today?",
    "The server is ready, and twenty five requests are waiting.",
    "The train to the city leaves at seven in the evening.",
    "Please leave your name and number after the tone.",
)


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    device: str
    threads: int
    streams: int
    streaming: bool
    wall_s: float
    cpu_s: float
    """CPU seconds of the process: less disturbed by neighbours than the wall clock."""
    audio_s: float
    audio_s_per_s: float
    audio_s_per_cpu_s: float
    first_audio_p50_s: float
    first_audio_p95_s: float
    gap_streams: int
    """Streams of which a listener would have run dry at least once."""
    llm_share: float
    flow_and_vocoder_share: float
    """Shares of the wall clock; the rest is scheduling."""
    llm_batch: float
    flow_batch: float
    """Mean rows."""
    flow_frames_per_audio_frame: float
    """Frames computed, prompts and earlier chunks included, per frame heard; 1 is the least."""
    peak_rss_mib: float
    load_average: float


def measure(model: LoadedModel, name: str, streams: int, streaming: bool) -> Report:
    sizing = size_for(model, max_running=streams)
    engine = make_engine(model, sizing)
    frontend = Frontend(model.tokenizer, model.config.version, sizing.longest, sizing.max_speech_tokens)
    voice = next(iter(model.voices.values()), Voice("bench", torch.zeros(192)))
    _run(engine, frontend, voice, 1, streaming)
    engine.counters = type(engine.counters)()
    cpu = time.process_time()
    began = time.monotonic()
    first, gaps = _run(engine, frontend, voice, streams, streaming)
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    counters = engine.counters
    return Report(
        model=name,
        device=torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else platform.machine(),
        threads=torch.get_num_threads(),
        streams=streams,
        streaming=streaming,
        wall_s=wall,
        cpu_s=cpu,
        audio_s=counters.audio_seconds,
        audio_s_per_s=counters.audio_seconds / wall,
        audio_s_per_cpu_s=counters.audio_seconds / cpu,
        first_audio_p50_s=statistics.median(first),
        first_audio_p95_s=sorted(first)[max(0, -(-len(first) * 95 // 100) - 1)],
        gap_streams=gaps,
        llm_share=counters.llm_seconds / wall,
        flow_and_vocoder_share=counters.sound_seconds / wall,
        llm_batch=counters.llm_rows / max(1, counters.llm_batches),
        flow_batch=counters.flow_rows / max(1, counters.flow_batches),
        flow_frames_per_audio_frame=counters.flow_frames / max(1, 2 * counters.speech_tokens),
        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        load_average=os.getloadavg()[0],
    )


def _run(engine: Engine, frontend: Frontend, voice: Voice, streams: int, streaming: bool) -> tuple[list[float], int]:
    """(first audio of each stream in seconds, streams that would have run dry)."""
    began = time.monotonic()
    for index in range(streams):
        text = TEXTS[index % len(TEXTS)]
        request = SynthesisRequest(f"bench-{index}", text, voice, seed=index, streaming=streaming)
        engine.add(frontend.job(request, began))
    first: dict[str, float] = {}
    heard: dict[str, float] = {}
    dry: set[str] = set()
    while engine.jobs:
        for event in engine.step():
            name = event.job.request.request_id
            now = time.monotonic() - began
            if isinstance(event, Failed):
                raise RuntimeError(f"{name}: {event.reason}")
            if isinstance(event, Audio):
                if now > first.setdefault(name, now) + heard.get(name, 0.0):
                    dry.add(name)
                heard[name] = heard.get(name, 0.0) + len(event.pcm) / engine.audio.sample_rate
    return list(first.values()), len(dry)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cosyvoice_worker.bench.engine", description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--whole", action="store_true", help="decode sentences whole instead of streaming them")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=list(DTYPES), default="fp32")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0: torch's own choice")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: skipped")
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    model = build.load(open_directory(options.model_dir), torch.device(options.device), DTYPES[options.precision])
    reports = [measure(model, options.model_dir.name, n, not options.whole) for n in options.streams]
    print(_table(reports))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(r) for r in reports], indent=1))
    return 0


def _table(reports: list[Report]) -> str:
    rows = [{k: f"{v:.2f}" if isinstance(v, float) else str(v) for k, v in asdict(r).items()} for r in reports]
    width = max(map(len, rows[0]))
    return "\n".join(f"{key:<{width}}" + "".join(f"{row[key]:>18}" for row in rows) for key in rows[0])


if __name__ == "__main__":
    sys.exit(main())
