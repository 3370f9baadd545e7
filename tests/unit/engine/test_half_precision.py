"""What half precision cannot hold is computed again in float32, for the sentence that needs it alone."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from cosyvoice_worker.engine.modules.build import LoadedModel
from tests.unit.engine.tiny import Bench, model, request

HALF = torch.float16


def too_large(loaded: LoadedModel, part: str) -> LoadedModel:
    """The model with a layer of `part` whose values exceed 65504, the largest of float16, and come back in the next."""
    loaded = replace(loaded, **{part: deepcopy(getattr(loaded, part))})
    if part == "lm":
        mlp = loaded.lm.layers[0].mlp
        mlp.gate_up_proj.weight.mul_(2**10)
        mlp.down_proj.weight.mul_(2**-14)
    else:
        assert loaded.flow.encoder_proj is not None
        name = next(n for n, _ in loaded.flow.estimator.named_modules() if n.endswith("ff.net.0.proj"))
        loaded.flow.estimator.get_submodule(name).weight.mul_(2**14)
        loaded.flow.estimator.get_submodule(name.replace("0.proj", "2")).weight.mul_(2**-14)
    return loaded


def in_float32(loaded: LoadedModel) -> LoadedModel:
    """The same weights, held in float32; the cache stays as it is."""
    return replace(loaded, lm=deepcopy(loaded.lm).float(), flow=deepcopy(loaded.flow).float())


@pytest.mark.parametrize("part", ["lm", "flow"])
def test_what_overflows_is_what_float32_gives(part: str) -> None:
    loaded = too_large(model(2, HALF), part)
    bench = Bench(loaded=loaded)
    told = bench.add(request("Hi there you.", seed=1, prompt=30))
    bench.finish()
    assert not told.error
    assert bench.engine.counters.not_finite == 1, "known from then on"
    wide = in_float32(loaded) if part == "lm" else replace(loaded, flow=in_float32(loaded).flow)
    expected = Bench(loaded=wide)
    same = expected.add(request("Hi there you.", seed=1, prompt=30))
    expected.finish()
    assert expected.engine.counters.not_finite == 0
    assert told.tokens == same.tokens
    if part == "flow":
        np.testing.assert_allclose(told.pcm, same.pcm, atol=1e-5)


def test_a_sentence_whose_cache_is_spoilt_is_computed_again_alone() -> None:
    bench = Bench(loaded=model(2, HALF))
    spoilt = bench.add(request("Hi there you.", seed=5, prompt=30))
    other = bench.add(request("Hi there you.", seed=1))
    for _ in range(5):
        bench.step()
    said = list(spoilt.job.sentences[0].tokens)
    for block in spoilt.job.sentences[0].blocks:
        bench.engine.llm.cache.data[:, block * 32 : (block + 1) * 32] = torch.nan
    bench.finish()
    assert spoilt.done
    assert not spoilt.error
    assert spoilt.tokens[0][: len(said)] == said
    assert other.done
    assert not other.error
    assert (spoilt.job.sentences[0].wide_speech, other.job.sentences[0].wide_speech) == (True, False)
    assert bench.engine.counters.not_finite == 1


def test_what_float32_cannot_hold_either_fails() -> None:
    loaded = model(2, HALF)
    loaded = replace(loaded, lm=deepcopy(loaded.lm))
    loaded.lm.llm_decoder.weight.fill_(torch.nan)
    bench = Bench(loaded=loaded)
    told = bench.add(request("Hi there you.", seed=1))
    bench.finish()
    assert "not finite" in told.error
    assert bench.engine.counters.not_finite == 2
