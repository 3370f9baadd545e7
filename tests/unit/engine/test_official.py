"""The whole engine against what the official code recorded: every mode, greedy and without noise, all in one batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from cosyvoice_worker.engine.audio_runner import AudioRunner
from cosyvoice_worker.engine.requests import SynthesisRequest, Voice
from tests.golden.recording import Recording
from tests.unit.engine.tiny import DATA, Bench, Told, model

GREEDY = {"top_k": 1, "tau": 1000.0}
"""The likeliest token, and no repetition rule."""


@pytest.fixture
def recording() -> Recording:
    return Recording(str(DATA / "golden-v2"), model())


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(AudioRunner, "_noise", lambda self, sequence: lambda first, count: torch.zeros(count, 9))
    loaded = model()
    llm = loaded.config.llm
    greedy = replace(llm, sampling=replace(llm.sampling, **GREEDY))
    return Bench(slots=8, loaded=replace(loaded, config=replace(loaded.config, llm=greedy)))


def ask(recording: Recording, mode: str) -> SynthesisRequest:
    texts = recording.facts["e2e_texts"]
    recorded = recording.prompts["24"]
    voices: dict[str, Voice] = {
        "sft": next(iter(model().voices.values())),
        "zero_shot": replace(recorded, prompt_text=texts["zero_shot_prompt_text"]),
    }
    instruct = texts["instruct"].removesuffix("<|endofprompt|>") if mode == "instruct2" else ""
    return SynthesisRequest(mode, texts[mode], voices.get(mode, recorded), instruct=instruct, streaming=False)


def test_every_mode_in_one_batch_gives_the_official_tokens_and_sound(recording: Recording, bench: Bench) -> None:
    told: dict[str, Told] = {
        mode: bench.add(ask(recording, mode)) for mode in ("sft", "zero_shot", "cross_lingual", "instruct2")
    }
    bench.finish()
    for mode, one in told.items():
        assert list(chain(*one.tokens)) == recording(f"e2e/{mode}/tokens").tolist(), mode
        # Tolerances of the recordings: end to end 5e-3, as the pitch's rounding gathers in the phase.
        np.testing.assert_allclose(one.pcm, recording(f"e2e/{mode}/wav")[0].numpy(), atol=5e-3, err_msg=mode)


def test_speed_is_the_official_one(recording: Recording, bench: Bench) -> None:
    told = bench.add(replace(ask(recording, "zero_shot"), speed=1.3))
    bench.finish()
    np.testing.assert_allclose(told.pcm, recording("e2e/zero_shot_speed1.3/wav")[0].numpy(), atol=5e-3)
