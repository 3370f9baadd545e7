"""`python -m tests.bench.engine`: the engine beside the official code; writes build/bench/engine.json.

Both sides take turns, run by run, with the same weights, texts and voice. Ours has the torch threads that a worker
gives itself. The peer counts at its best: one text after another, with as many torch threads as ours and with one per
core, or four Python threads, with as many torch threads as ours and with one each.
All ratios are ours / peer: throughput wants to be high, first audio and the time of a text alone want to be low.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from cosyvoice_worker.engine.frontend.job import Frontend
from cosyvoice_worker.engine.modules import build
from cosyvoice_worker.engine.requests import SynthesisRequest
from cosyvoice_worker.engine.sizing import cpu_threads, size_for
from cosyvoice_worker.models.directory import open_directory
from cosyvoice_worker.scheduling.service import SpeechService
from tests.bench.engine import workload
from tests.bench.engine.limits import flops, matmul_rate
from tests.bench.engine.sides import Peer, Spoken, audio_seconds, speak, throughput

ROOT = Path(__file__).parents[3]
PEER_PYTHON = ROOT / "build" / "bench-venv" / "bin" / "python"
REQUESTS, STREAMS, PEER_THREADS = 16, 8, 4
CORES = len(os.sched_getaffinity(0))
Runs = dict[str, list[list[Spoken]]]


@dataclass(frozen=True, slots=True)
class Effort:
    size: str
    rounds: int
    peer_requests: int
    """Enough for a rate: the peer's does not depend on how many wait."""


EFFORTS = {"tiny": Effort("Tiny", 3, 8), "medium": Effort("Medium", 2, 4)}


async def compare(effort: Effort, folder: Path, threads: int) -> dict[str, Any]:
    path = workload.write_model(folder / effort.size, effort.size)
    voice = workload.voice()
    model = build.load(open_directory(path), torch.device("cpu"))
    sizing = size_for(model)
    frontend = Frontend(model.tokenizer, model.config.version, sizing.longest, sizing.max_speech_tokens)

    def job(text: str) -> Any:
        return frontend.job(SynthesisRequest("bench", text, voice), 0.0)

    def ids(count: int) -> list[list[int]]:
        return [job(text).sentences[0].text_ids for text in workload.texts(count)]

    needed = {text: flops(model, frontend, voice, text) for text in workload.LOAD}
    service = await workload.started(model, effort.size)
    prompt = workload.for_peer(voice, job(workload.SHORT).prompt.text_ids)
    peer = Peer(PEER_PYTHON, path, workload.dimensions(effort.size), prompt, threads)
    peer.speak(ids(1), workers=1, threads=threads, streaming=False)

    theirs: Runs = {}
    ours: Runs = {}
    rates: list[float] = []
    steps: list[dict[str, float]] = []
    counts = sorted({threads, CORES})

    def ask(name: str, count: int, workers: int, torch_threads: int, *, streaming: bool) -> None:
        spoken = peer.speak(ids(count), workers=workers, threads=torch_threads, streaming=streaming)
        theirs.setdefault(f"{name}, torch threads {torch_threads}", []).append(spoken)

    async def say(name: str, count: int, *, streaming: bool) -> None:
        ours.setdefault(name, []).append(await speak(service, workload.texts(count), voice, streaming=streaming))

    for turn in range(effort.rounds):
        print(f"{effort.size}: round {turn + 1} of {effort.rounds}", flush=True)
        for count in counts:
            ask("alone", 1, 1, count, streaming=False)
            ask("stream alone", 1, 1, count, streaming=True)
        await say("alone", 1, streaming=False)
        await say("stream alone", 1, streaming=True)
        rates.append(matmul_rate(CORES))
        before = _seconds(service)
        await say("requests", REQUESTS, streaming=False)
        steps.append({name: value - before[name] for name, value in _seconds(service).items()})
        rates.append(matmul_rate(CORES))
        for count in sorted({1, threads}):
            ask("threads", effort.peer_requests, PEER_THREADS, count, streaming=False)
        await say("streams", STREAMS, streaming=True)
        ask("streams", STREAMS, STREAMS, threads, streaming=True)
    about = peer.about
    peer.close()
    await service.stop()
    _same_audio(ours, theirs)
    work = sum(needed[text] for text in workload.texts(REQUESTS))
    return {"peer_versions": about} | _figures(theirs, ours, work, max(rates), steps)


def _seconds(service: SpeechService) -> dict[str, float]:
    counters = service.counters
    return {
        "language_model": counters.llm_seconds,
        "flow_and_vocoder": counters.sound_seconds,
        "language_model_batches": counters.llm_batches,
        "language_model_rows": counters.llm_rows,
        "flow_batches": counters.flow_batches,
        "flow_rows": counters.flow_rows,
        "flow_frames": counters.flow_frames,
    }


def _same_audio(ours: Runs, theirs: Runs) -> None:
    """Both sides must have made the same audio, else nothing here can be compared. Raises RuntimeError."""
    for name in ("alone", "stream alone", "streams"):
        made = [sorted(s.samples for s in run) for run in (*ours[name], *chain(*_ways(theirs, name).values()))]
        if any(run != made[0] for run in made):
            raise RuntimeError(f"{name}: the sides made different audio, in samples per text: {made}")


def _ways(theirs: Runs, name: str) -> Runs:
    """The peer's runs of that name, by the whole name: one for each number of torch threads."""
    return {way: runs for way, runs in theirs.items() if way.startswith(f"{name},")}


def _figures(theirs: Runs, ours: Runs, work: int, rate: float, steps: list[dict[str, float]]) -> dict[str, Any]:
    def rates(runs: list[list[Spoken]]) -> float:
        return statistics.median(throughput(run) for run in runs)

    def firsts(runs: list[list[Spoken]]) -> float:
        return statistics.median(statistics.median(s.first for s in run) for run in runs)

    def ends(runs: list[list[Spoken]]) -> float:
        return statistics.median(run[0].end for run in runs)

    def in_line(runs: list[list[Spoken]]) -> float:
        """In line the k-th stream waits for k whole ones; what one takes is measured."""
        return statistics.median(s.first + place * s.end for run in runs for s in run for place in range(STREAMS))

    ways = {way: rates(runs) for name in ("alone", "threads") for way, runs in _ways(theirs, name).items()}
    alone = _ways(theirs, "stream alone")
    peer = {
        "audio_s_per_s": ways,
        "first_audio_s": {way: firsts(runs) for way, runs in _ways(theirs, "streams").items()}
        | {f"in line: {way}": in_line(runs) for way, runs in alone.items()},
        "alone_s": min(ends(runs) for runs in _ways(theirs, "alone").values()),
        "alone_first_audio_s": min(firsts(runs) for runs in alone.values()),
    }
    wall = statistics.median(max(s.end for s in run) for run in ours["requests"])
    engine = {
        "audio_s_per_s": rates(ours["requests"]),
        "first_audio_s": firsts(ours["streams"]),
        "first_audio_worst_s": statistics.median(max(s.first for s in run) for run in ours["streams"]),
        "streams_run_dry": statistics.median(sum(s.ran_dry for s in run) for run in ours["streams"]),
        "streamed_audio_s_per_s": rates(ours["streams"]),
        "alone_s": ends(ours["alone"]),
        "alone_first_audio_s": firsts(ours["stream alone"]),
        "requests_audio_s": audio_seconds(ours["requests"][0]),
        "requests_wall_s": wall,
        "requests_steps": {name: statistics.median(s[name] for s in steps) for name in steps[0]},
    }
    return {
        "throughput_ratio": engine["audio_s_per_s"] / max(ways.values()),
        "first_audio_ratio": engine["first_audio_s"] / min(peer["first_audio_s"].values()),
        "single_ratio": engine["alone_s"] / peer["alone_s"],
        "single_first_audio_ratio": engine["alone_first_audio_s"] / peer["alone_first_audio_s"],
        "flops_fraction": work / wall / rate,
        "gflop_per_audio_s": work / audio_seconds(ours["requests"][0]) / 1e9,
        "matmul_gflop_per_s": rate / 1e9,
        "ours": engine,
        "peer": peer,
    }


async def memory(folder: Path, requests: int) -> dict[str, float]:
    """The process's memory over many short requests on the tiny model, 16 at a time."""
    model = build.load(open_directory(folder / "Tiny"), torch.device("cpu"))
    service = await workload.started(model, "Tiny")
    voice = workload.voice()
    marks: list[float] = []
    for _ in range(5):
        left = requests // 5
        while left > 0:
            await speak(service, [workload.SHORT] * min(REQUESTS, left), voice, streaming=True)
            left -= REQUESTS
        marks.append(_rss_mib())
    used = service.reading().kv_blocks_used
    await service.stop()
    return {"requests": requests, "rss_mib": [round(m, 1) for m in marks], "kv_blocks_left_in_use": used}  # type: ignore[dict-item]


def _rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def table(result: dict[str, Any]) -> str:
    """A Markdown table of both sides."""
    lines = [f"| | {' | '.join(f'{name}, peer | {name}, ours | ours / peer' for name in result['models'])} |"]
    lines.append("|---" * (1 + 3 * len(result["models"])) + "|")

    def row(label: str, cells: list[tuple[float, float, float]]) -> None:
        lines.append(f"| {label} | " + " | ".join(f"{p:.3g} | {o:.3g} | {r:.2f}" for p, o, r in cells) + " |")

    models = result["models"].values()
    best = [(max(m["peer"]["audio_s_per_s"].values()), m["ours"]["audio_s_per_s"]) for m in models]
    row(f"{REQUESTS} requests: audio seconds per second", [(p, o, o / p) for p, o in best])
    first = [(min(m["peer"]["first_audio_s"].values()), m["ours"]["first_audio_s"]) for m in models]
    row(f"{STREAMS} streams: first audio, median, s", [(p, o, o / p) for p, o in first])
    for label, key in (("one alone, s", "alone_s"), ("one stream alone: first audio, s", "alone_first_audio_s")):
        row(label, [(m["peer"][key], m["ours"][key], m["ours"][key] / m["peer"][key]) for m in models])
    lines.append("")
    lines.append("| | " + " | ".join(result["models"]) + " |")
    lines.append("|---" * (1 + len(result["models"])) + "|")
    for label, key in (
        ("share of the matrix-multiply rate", "flops_fraction"),
        ("measured rate, GFLOP/s", "matmul_gflop_per_s"),
        ("GFLOP per second of audio", "gflop_per_audio_s"),
    ):
        lines.append(f"| {label} | " + " | ".join(f"{m[key]:.3g}" for m in models) + " |")
    for label, key in (("language model", "language_model"), ("flow and vocoder", "flow_and_vocoder")):
        shares = [m["ours"]["requests_steps"][key] / m["ours"]["requests_wall_s"] for m in models]
        lines.append(f"| {label}, share of the time | " + " | ".join(f"{s:.0%}" for s in shares) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(EFFORTS), default=list(EFFORTS))
    parser.add_argument("--rounds", type=int, default=0, help="measurements of each; 0: three (tiny), two (medium)")
    parser.add_argument("--requests-in-a-row", type=int, default=1000, help="short requests for the memory figures")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "engine.json")
    chosen = parser.parse_args()
    if not PEER_PYTHON.exists():
        parser.error(f"{PEER_PYTHON} is missing; `make bench-engine` makes it")
    threads = cpu_threads()
    torch.set_num_threads(threads)
    began, load = time.monotonic(), os.getloadavg()[0]
    result: dict[str, Any] = {
        "ratios": "ours / peer",
        "machine": platform.machine(),
        "cores": CORES,
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "peer": "cosyvoice-minicpmo 0.1.0",
        "numpy": version("numpy"),
        "load_average_before": load,
        "models": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.models:
            effort = EFFORTS[name]
            if chosen.rounds:
                effort = Effort(effort.size, chosen.rounds, effort.peer_requests)
            result["models"][name] = asyncio.run(compare(effort, Path(folder), threads))
        if "tiny" in chosen.models and chosen.requests_in_a_row:
            result["memory"] = asyncio.run(memory(Path(folder), chosen.requests_in_a_row))
    result["bench_s"] = round(time.monotonic() - began, 1)
    text = table(result)
    # Each model stands at the top as well, for those who look only for its ratios.
    result |= result.pop("models") | {"table": text.splitlines()}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    print(text)
    print(
        f"\nwrote {chosen.out} after {result['bench_s']} s; load average before: {load:.1f}, torch threads: {threads}"
    )


if __name__ == "__main__":
    main()
