"""A recorded pair: what the official code gave for a model, and the inputs that it gave it for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor

from cosyvoice_worker.engine.modules.build import LoadedModel
from cosyvoice_worker.engine.requests import Voice


@dataclass(frozen=True)
class Line:
    """One comparison: the largest absolute difference and what it may be. Exact comparisons count mismatches."""

    name: str
    difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.difference <= self.tolerance  # a NaN does not


class Recording:
    """GOLDEN_PREFIX.npz, .json, -prompt24k.wav and -prompt44k.wav."""

    def __init__(self, prefix: str, model: LoadedModel) -> None:
        self.prefix = prefix
        self.model = model
        with np.load(f"{prefix}.npz") as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}
        self.facts: dict[str, Any] = json.loads(Path(f"{prefix}.json").read_text(encoding="utf-8"))
        self.version = model.config.version
        recorded = 3 if "3" in str(self.facts["model"]) else 2
        if recorded != self.version:
            raise SystemExit(f"{prefix} was recorded with {self.facts['model']}, the model is CosyVoice{self.version}")

    def __call__(self, name: str) -> Tensor:
        """An array as a tensor on torch's default device; whole numbers as int64."""
        tensor = torch.from_numpy(self.arrays[name]).to(torch.get_default_device())
        return tensor if tensor.is_floating_point() else tensor.long()

    def has(self, name: str) -> bool:
        return name in self.arrays

    def cases(self, group: str) -> Iterator[tuple[str, Any]]:
        """(`group/case0`, facts), ..."""
        for index, facts in enumerate(self.facts[group]):
            yield f"{group}/case{index}", facts

    def prompt_file(self, name: str) -> Path:
        """`24` or `44`; may be missing."""
        return Path(f"{self.prefix}-prompt{name}k.wav")

    def prompt_audio(self, name: str) -> tuple[Tensor, int]:
        audio, rate = soundfile.read(self.prompt_file(name), dtype="float32", always_2d=True)
        return torch.from_numpy(audio.mean(axis=1)), rate

    @cached_property
    def prompts(self) -> dict[str, Voice]:
        """`24`, `44`: the voices of the two prompt recordings, from their recorded resampled waves."""
        with torch.device("cpu"):  # where features are always made
            return {
                name: self.model.recordings.voice_of(
                    name, self(f"frontend/p{name}/wav16k")[0], self(f"frontend/p{name}/wav24k")[0], ""
                )
                for name in ("24", "44")
            }


def far(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference; infinite where the shapes differ."""
    if one.shape != other.shape:
        return float("inf")
    return float((one.double() - other.to(one.device).double()).abs().max()) if one.numel() else 0.0


def wrong(one: list[int] | Tensor, other: list[int] | Tensor) -> float:
    """How many positions differ, missing ones included."""
    left, right = list(map(int, one)), list(map(int, other))
    return sum(a != b for a, b in zip(left, right, strict=False)) + abs(len(left) - len(right))
