"""What a reader leaves unread is counted until it is read or given up."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from cosyvoice_worker.engine.requests import SynthesisFailed, Usage
from cosyvoice_worker.scheduling.stream import SpeechStream, Unread

PIECE = np.zeros(100, np.float32)


async def test_unread_audio_counts_until_it_is_read() -> None:
    unread = Unread()
    stream = SpeechStream(lambda: None, unread)
    for item in (PIECE, PIECE, Usage(1, 2, 3.0)):
        await asyncio.to_thread(stream.put, item)
    await asyncio.sleep(0)
    assert unread.bytes == 800
    await anext(stream)
    assert unread.bytes == 400
    assert len([piece async for piece in stream]) == 1
    assert unread.bytes == 0
    assert stream.usage == Usage(1, 2, 3.0)


async def test_who_leaves_gives_up_what_is_unread_and_what_still_comes() -> None:
    unread = Unread()
    stream = SpeechStream(lambda: None, unread)
    stream.put(PIECE)
    await asyncio.sleep(0)
    stream.put(PIECE)
    stream.cancel()
    await asyncio.sleep(0)
    assert unread.bytes == 0
    with pytest.raises(SynthesisFailed):
        await anext(stream)
