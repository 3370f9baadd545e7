"""`python -m tests.golden MODEL_DIR GOLDEN_PREFIX`: compares the networks with a recording of the official code.

Prints a line for each comparison: the largest difference and its tolerance. Exit code 1 if one is exceeded. On a GPU
(`--device cuda`, float32) tolerances of what is not exact are twenty times those of the CPU: a guess, until it has run
on one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("worker", "contract")]

import torch  # noqa: E402

from cosyvoice_worker.device.select import DeviceError, select_device  # noqa: E402
from cosyvoice_worker.engine.modules import build  # noqa: E402
from cosyvoice_worker.models.directory import ModelDirectoryError, open_directory  # noqa: E402
from tests.golden.groups import GROUPS  # noqa: E402
from tests.golden.recording import Line, Recording  # noqa: E402

GPU_FACTOR = 20.0


def compare(model_dir: str, prefix: str, device: torch.device, groups: Sequence[str] = ()) -> Iterator[Line]:
    """The lines of the named groups, or of all. Raises ModelDirectoryError."""
    recording = Recording(prefix, build.load(open_directory(model_dir), device, torch.float32))
    for name in ("24", "44"):
        if not recording.prompt_file(name).is_file():
            print(f"note: {recording.prompt_file(name)} is missing, resampling is not compared")
    factor = 1.0 if device.type == "cpu" else GPU_FACTOR
    with torch.inference_mode(), device:
        for group in groups or GROUPS:
            for line in GROUPS[group](recording):
                yield Line(line.name, line.difference, line.tolerance * factor)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.split("\n\n")[0])
    parser.add_argument("model_dir", help="an official model directory, the one that was recorded")
    parser.add_argument("golden_prefix", help="PREFIX of PREFIX.npz, PREFIX.json, PREFIX-prompt24k.wav, -prompt44k.wav")
    parser.add_argument("groups", nargs="*", help=f"only these: {', '.join(GROUPS)}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.groups if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    for suffix in (".npz", ".json"):
        if not Path(given.golden_prefix + suffix).is_file():
            parser.error(f"{given.golden_prefix}{suffix} does not exist")
    torch.set_num_threads(1)
    failed = 0
    try:
        device, _ = select_device(given.device, "fp32")
        for line in compare(given.model_dir, given.golden_prefix, device, given.groups):
            print(f"{'ok  ' if line.passed else 'FAIL'} {line.name:48} {line.difference:10.2e} <= {line.tolerance:.0e}")
            failed += not line.passed
    except (ModelDirectoryError, DeviceError) as error:
        parser.error(str(error))
    print(f"{failed} comparisons failed" if failed else "all comparisons passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
