"""The service as the HTTP API uses it: from asyncio, ready after one synthesis."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from cosyvoice_worker.engine.engine import Pcm
from cosyvoice_worker.engine.requests import Refused, SynthesisFailed, Unspeakable
from cosyvoice_worker.scheduling.service import Options, SpeechService, SpeechStream
from tests.unit.engine.tiny import alone, model, request, voice


async def pieces_of(stream: SpeechStream) -> list[Pcm]:
    return [piece async for piece in stream]


async def test_it_warms_up_measures_itself_speaks_and_ends() -> None:
    service = SpeechService(model(), Options("tiny", streams=50.0, max_running=2))
    assert (service.reading().capacity, service.reading().capacity_measured) == (50.0, False)
    await service.start(voice(prompt=30))
    reading = service.reading()
    assert reading.capacity_measured
    assert 0 < reading.capacity != 50.0
    assert reading.demand == 0.0, "its own warm-up is nobody's demand"
    assert service.alive

    stream = await service.submit(request("Hi there you.", seed=1))
    assert stream.usage is None
    pcm = np.concatenate([piece async for piece in stream])
    single = alone("Hi there you.", 1, 0, True)
    np.testing.assert_allclose(pcm, single.pcm, atol=5e-3)
    assert stream.usage is not None
    assert stream.usage.audio_seconds == pytest.approx(len(pcm) / service.sample_rate)
    assert [piece async for piece in stream] == [], "an exhausted stream stays exhausted"

    left = await service.submit(request("One two three four five six seven eight nine ten.", seed=1))
    async for _ in left:
        break
    left.cancel()
    left.cancel()
    with pytest.raises(SynthesisFailed, match="cancelled"):
        await anext(left)
    while service.reading().running:  # noqa: ASYNC110 - a thread changes it
        await asyncio.sleep(0.01)
    assert service.reading().kv_blocks_used == 0

    dictation = await service.dictate(request("Hi there", seed=1))
    reader = asyncio.ensure_future(pieces_of(dictation))
    for piece in (" you", ". ", "...", " 😀"):
        await dictation.append(piece)
    await dictation.finish()
    await dictation.finish()
    np.testing.assert_allclose(np.concatenate(await reader), single.pcm, atol=5e-3)
    assert dictation.usage == stream.usage
    with pytest.raises(ValueError, match="finished"):
        await dictation.append("more")

    with pytest.raises(Unspeakable):
        await service.submit(request("..."))
    last = await service.submit(request("Hi there you.", seed=1))
    assert await service.drain(60)
    with pytest.raises(Refused):
        await service.submit(request())
    assert sum([len(piece) async for piece in last]) == len(pcm)
    await service.stop()
    assert not service.alive
