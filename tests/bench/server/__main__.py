"""`python -m tests.bench.server`: a worker process under load below, at and above its capacity, and under faults.

Writes build/bench/server.json: `accepted`, `refused`, `lost` (must be 0), `first_audio` (p50 and p95 in seconds, per
load), `rss_slope_mib_per_minute`, and each kind of load by itself. Fails where a request was lost, one failed without a
fault, memory grows, or the worker does not end as it should.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.server.clients import TEXTS, Clients, Ending, Wish, some_wish
from tests.bench.server.worker import Worker

ROOT = Path(__file__).parents[3]
STALL_SECONDS = 3.0
MAX_SLOPE = 5.0
"""MiB a minute that the process may grow, a measure of noise: a request that leaked its audio would be 50 or more."""
FLAGS = [
    "--listen-host",
    "127.0.0.1",
    "--max-running",
    "8",
    "--max-queued",
    "24",
    "--queue-seconds",
    "10",
    "--drain-seconds",
    "60",
]
LOADS = {"below_capacity": 0.5, "at_capacity": 1.0, "above_capacity": 2.0, "with_faults": 0.8}
"""What is asked for, as a share of capacity."""


@dataclass
class Tally:
    """How the requests of one load ended."""

    endings: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    first_audio: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    """Who stopped reading and was cut: an honest end that he asked for."""

    def add(self, wish: Wish, ending: Ending) -> None:
        self.endings[ending.kind] += 1
        self.accepted += ending.accepted
        if ending.first_audio is not None:
            self.first_audio.append(ending.first_audio)
        if ending.kind == "error" and wish.manner == "stops reading":
            self.cut += 1
        elif ending.kind in ("error", "lost"):
            self.faults[f"{ending.kind}: {wish.manner}, {wish.format}: {ending.why}"] += 1

    @property
    def failed(self) -> int:
        return self.endings["error"] - self.cut

    def figures(self) -> dict[str, Any]:
        return {
            "asked": self.endings.total(),
            "accepted": self.accepted,
            "refused": self.endings["refused"],
            "whole": self.endings["whole"],
            "left": self.endings["left"],
            "cut_for_not_reading": self.cut,
            "failed_honestly": self.failed,
            "lost": self.endings["lost"],
            "first_audio": percentiles(self.first_audio),
            "ends": dict(self.faults),
        }


def percentiles(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"p50": None, "p95": None}
    p50, p95 = np.percentile(values, [50, 95])
    return {"p50": round(float(p50), 3), "p95": round(float(p95), 3)}


async def saturate(clients: Clients, seconds: float) -> float:
    """Audio seconds per second that eight listeners get who ask again at once: its capacity over HTTP."""
    spoken = 0.0
    began = time.perf_counter()

    async def again(chance: random.Random) -> None:
        nonlocal spoken
        while time.perf_counter() - began < seconds:
            wish = Wish(chance.choice(TEXTS))
            ending = await clients.speak(wish)
            if ending.kind == "refused":  # it does not know yet what it can do
                await asyncio.sleep(0.5)
                continue
            if ending.kind != "whole":
                raise RuntimeError(f"the worker cannot serve eight listeners: {ending}")
            spoken += clients.seconds(wish.text)

    await asyncio.gather(*(again(random.Random(seed)) for seed in range(8)))
    return spoken / (time.perf_counter() - began)


async def come(clients: Clients, per_second: float, seconds: float, chance: random.Random, tally: Tally) -> None:
    """Clients that come by chance, whoever is there already, until the last has ended."""
    tasks = []

    async def one(wish: Wish) -> None:
        tally.add(wish, await clients.speak(wish))

    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        tasks.append(asyncio.create_task(one(some_wish(chance))))
        await asyncio.sleep(chance.expovariate(per_second))
    await asyncio.gather(*tasks)


async def end_under_load(worker: Worker, clients: Clients) -> dict[str, Any]:
    """SIGTERM while streams play: they finish, and the process ends with 0."""
    playing = [asyncio.create_task(clients.speak(Wish(TEXTS[-1]))) for _ in range(4)]
    await asyncio.to_thread(worker.wait_until_running, len(playing))
    worker.terminate()
    endings = await asyncio.gather(*playing)
    status = await asyncio.to_thread(worker.exit_status)
    return {"playing": len(playing), "whole": sum(e.kind == "whole" for e in endings), "exit_status": status}


def slope(points: list[tuple[float, float]]) -> float:
    """MiB a minute through (seconds, MiB)."""
    if len(points) < 2:
        return 0.0
    times, sizes = zip(*points, strict=True)
    return float(np.polyfit(np.array(times) / 60, np.array(sizes), 1)[0])


async def measure(worker: Worker, *, seconds: float, rounds: int) -> dict[str, Any]:
    clients = Clients(worker.base, STALL_SECONDS)
    await clients.learn()
    capacity = await saturate(clients, seconds / 2)
    per_second = capacity / (sum(map(clients.seconds, TEXTS)) / len(TEXTS))
    tallies = {name: Tally() for name in LOADS}
    settled: list[tuple[float, float]] = []
    unsettled = 0
    chance = random.Random(1)
    for number in range(rounds):
        for name, share in LOADS.items():
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            worker.faults(on=name == "with_faults")
            await come(clients, share * per_second, seconds, chance, tallies[name])
            worker.faults(on=False)
            unsettled += not await asyncio.to_thread(worker.settle)
            settled.append((time.monotonic(), worker.rss_mib()))
    metrics, live = worker.metrics(), worker.live
    drain = await end_under_load(worker, clients)
    await clients.close()
    steps = {name: count for name, count in metrics.items() if "out_of_memory" in name or "failed_batches" in name}
    return {
        "accepted": sum(t.accepted for t in tallies.values()),
        "refused": sum(t.endings["refused"] for t in tallies.values()),
        "lost": sum(t.endings["lost"] for t in tallies.values()),
        "first_audio": {name: percentiles(t.first_audio) for name, t in tallies.items()},
        # The first round fills pools and caches.
        "rss_slope_mib_per_minute": round(slope(settled[len(LOADS) - 1 :]), 2),
        "rss_mib": [round(size, 1) for _, size in settled],
        "capacity": round(capacity, 2),
        "capacity_reported": round(metrics['cosyvoice_capacity{from="Measured"}'], 2),
        "failed_without_fault": sum(t.failed for name, t in tallies.items() if name != "with_faults"),
        "held_after_load": unsettled,
        "live": live,
        "drain": drain,
        "faults_met": steps,
        "loads": {name: tally.figures() for name, tally in tallies.items()},
    }


def wrong(figures: dict[str, Any]) -> list[str]:
    """What must not be."""
    drain = figures["drain"]
    return [
        text
        for text, is_so in {
            f"{figures['lost']} requests were lost": figures["lost"] > 0,
            f"{figures['failed_without_fault']} requests failed without a fault": figures["failed_without_fault"] > 0,
            f"memory grows by {figures['rss_slope_mib_per_minute']} MiB a minute": (
                figures["rss_slope_mib_per_minute"] > MAX_SLOPE
            ),
            "the worker still held something after its load had ended": figures["held_after_load"] > 0,
            "the worker's liveness is off": not figures["live"],
            f"SIGTERM: {drain}": drain["exit_status"] != 0 or drain["whole"] != drain["playing"],
        }.items()
        if is_so
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of each kind of load in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", default="DemoEnglish", help="a model in models/, or <size>:<seed> for a random one")
    chosen = parser.parse_args()
    source = ["--model-random", chosen.model] if ":" in chosen.model else ["--model-builtin", chosen.model]
    folders = ["--builtin-models-dir", str(ROOT / "models"), "--default-prompt-dir", str(ROOT / "models" / "prompts")]
    load_before = os.getloadavg()[0]
    path = ROOT / "build" / "bench" / "server.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Path(folder), [*source, *folders, *FLAGS, "--write-stall-seconds", str(STALL_SECONDS)])
        try:
            worker.wait_until_ready()
            figures = asyncio.run(measure(worker, seconds=chosen.seconds, rounds=chosen.rounds))
        finally:
            worker.terminate()
            worker.exit_status()
            path.with_suffix(".log").write_bytes(worker.log.read_bytes())
    figures |= {"model": chosen.model, "cores": os.cpu_count(), "load_average_before": round(load_before, 2)}
    path.write_text(json.dumps(figures, indent=2) + "\n")
    print(path.read_text())
    for fault in wrong(figures):
        print(f"bench-server: {fault}", file=sys.stderr)
    return 1 if wrong(figures) else 0


if __name__ == "__main__":
    sys.exit(main())
