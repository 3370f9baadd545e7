"""`python -m tests.bench.autoscaling`: prints the comparison and writes build/bench/autoscaling.json."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.autoscaling.decision import measure
from tests.bench.autoscaling.hpa import Autoscaler
from tests.bench.autoscaling.plot import svg
from tests.bench.autoscaling.pool import Card, Outcome, run
from tests.bench.autoscaling.setups import CARDS, Setup, gpu_load, operator_behaviour, setups
from tests.bench.autoscaling.traffic import Second, day

PEAK_STREAMS = 2000.0
COLD_STARTS = (60, 120, 300)
ACCEPTABLE_LATE = 0.001
DRAWN = ("T4", 120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=9, help="load steps on the real controller; 0: simulate them")
    parser.add_argument("--out", type=Path, default=Path("build/bench/autoscaling.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/autoscaling.svg"))
    chosen = parser.parse_args()
    traffic = list(day(PEAK_STREAMS, chosen.seed))
    table: dict[str, Any] = {}
    drawn: dict[str, Sequence[float]] = {}
    for cold_start in COLD_STARTS:
        print(f"\ncold start {cold_start} s{'':20}{'GPU hours':>12}{'late':>10}{'oscillations':>15}")
        for card in CARDS:
            outcomes = {setup.name: _day(traffic, card, setup, cold_start) for setup in setups()}
            if (card.name, cold_start) == DRAWN:
                drawn = {name: [n * card.capacity for n in day.replicas] for name, day in outcomes.items()}
            good = [o.gpu_hours for o in outcomes.values() if o.late_share < ACCEPTABLE_LATE]
            for name, outcome in outcomes.items():
                best = "  <- fewest under 0.1% late" if good and outcome.gpu_hours == min(good) else ""
                figures = f"{outcome.gpu_hours:12.0f}{outcome.late_share:10.3%}{outcome.oscillations:15}"
                print(f"{card.name:6}{name:29}{figures}{best}")
                table.setdefault(name, {}).setdefault(card.name, {})[f"cold_start_{cold_start}s"] = {
                    "gpu_hours": round(outcome.gpu_hours, 1),
                    "late_share": round(outcome.late_share, 5),
                    "oscillations": outcome.oscillations,
                }
    waits = measure(chosen.steps) if chosen.steps else decision_seconds()
    decision = round(statistics.median(waits), 1)
    source = f"real controller, {chosen.steps} steps" if chosen.steps else "simulated"
    print(f"\nfrom a load step to the decision, median: {decision} s ({source})")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"decision_s": decision, "decision_from": source, "signals": table}, indent=1))
    demand = [statistics.fmean(s.audio_seconds for s in traffic[at : at + 60]) for at in range(0, len(traffic), 60)]
    chosen.plot.write_text(svg("A day on T4 workers, cold start 120 s: audio seconds per second", demand, drawn))
    print(f"wrote {chosen.out} and {chosen.plot}")


def _day(traffic: list[Second], card: Card, setup: Setup, cold_start: float) -> Outcome:
    low, high = (math.ceil(PEAK_STREAMS * factor / card.capacity) for factor in (0.1, 2.5))
    autoscaler = Autoscaler(low, high, setup.up, setup.down)
    start = min(high, math.ceil(traffic[0].audio_seconds / card.capacity / 0.7) + 1)
    return run(traffic, card, autoscaler, setup.signal, cold_start=cold_start, start=start)


def decision_seconds() -> list[float]:
    """Times from a step of the load (half of the target to twice the target) to more workers being asked for."""
    card = CARDS[0]
    waits = []
    for phase in range(0, 120):
        step = 600 + phase
        steady, more = 0.4 * card.capacity * 4, 1.6 * card.capacity * 4
        traffic = (Second(1, steady if second < step else more) for second in range(step + 120))
        seen = _Recorder(4, 100, *operator_behaviour())
        run(traffic, card, seen, gpu_load, cold_start=120, start=4)
        waits.append(min(at for at, replicas in seen.asked if replicas > 4) - step)
    assert max(waits) <= 120
    assert min(waits) >= 0
    return waits


class _Recorder(Autoscaler):
    """Remembers when it asked for what."""

    @property
    def asked(self) -> list[tuple[float, int]]:
        return [(at, 4 + change) for at, change in self._changes]


if __name__ == "__main__":
    main()
