"""The networks give what the official code gave, for both models, one by one and in a batch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from cosyvoice_worker.engine.modules import build
from cosyvoice_worker.models.directory import open_directory
from tests.golden.groups import GROUPS, end_to_end_case
from tests.golden.recording import Line, Recording

DATA = Path(__file__).parent / "data"
END_TO_END = {
    2: ("zero_shot", "zero_shot_stream", "cross_lingual", "instruct2", "sft", "long_stream", "zero_shot_seeded", "vc"),
    3: ("zero_shot", "zero_shot_stream", "cross_lingual", "instruct2", "long_stream", "zero_shot_seeded", "vc"),
}
"""`python -m tests.golden` compares all; these cover every mode, and streams of two and of three chunks."""


@cache
def recording(version: int) -> Recording:
    torch.set_num_threads(1)
    model = build.load(open_directory(DATA / f"tiny-cosyvoice{version}"), torch.device("cpu"), torch.float32)
    return Recording(str(DATA / f"golden-v{version}"), model)


def exceeded(lines: list[Line]) -> list[Line]:
    assert lines, "nothing was compared"
    return [line for line in lines if not line.passed]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("group", [name for name in GROUPS if name != "e2e"])
def test_a_group_stays_within_its_tolerances(group: str, version: int) -> None:
    with torch.inference_mode():
        assert exceeded(list(GROUPS[group](recording(version)))) == []


@pytest.mark.parametrize(("version", "name"), [(version, name) for version in (2, 3) for name in END_TO_END[version]])
def test_text_becomes_the_recorded_wave(version: int, name: str) -> None:
    golden = recording(version)
    with torch.inference_mode():
        assert exceeded(list(end_to_end_case(golden, name, golden.facts["e2e"][name]))) == []


def test_a_comparison_fails_on_what_is_not_a_number() -> None:
    assert not Line("x", float("nan"), 1.0).passed
