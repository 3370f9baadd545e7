"""The reader's end of one request: audio that the engine's thread puts in and an asyncio task takes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cosyvoice_worker.engine.requests import SynthesisFailed, Usage

Pcm = NDArray[np.float32]


@dataclass(slots=True)
class Unread:
    """Audio that readers have not taken yet, of all streams of one event loop, which alone changes it."""

    bytes: int = 0


class SpeechStream(AsyncIterator[Pcm]):
    """The audio of one request, in order: float32 in -1..1, (n,), at the service's sample rate. One reader.

    Iteration raises `SynthesisFailed` when the request cannot be finished, and `Refused` when it waited in the queue
    longer than it may (nothing was given out then: the API may still answer 429). What a slow reader leaves unread
    stays here, bounded by the longest audio that one request can give, and is counted in `unread`. It holds up nothing
    else.
    """

    def __init__(self, cancel: Callable[[], None], unread: Unread | None = None) -> None:
        self.usage: Usage | None = None
        """Set when the stream is exhausted."""
        self._cancel = cancel
        self._unread = unread or Unread()
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Pcm | Usage | Exception] = asyncio.Queue()
        self._ended: Exception | None = None

    async def __anext__(self) -> Pcm:
        if self._ended is None:
            item = await self._items.get()
            if isinstance(item, np.ndarray):
                self._unread.bytes -= item.nbytes
                return item
            if isinstance(item, Usage):
                self.usage = item
                self._ended = StopAsyncIteration()
            else:
                self._ended = item
        raise self._ended

    def cancel(self) -> None:
        """Stop the work and free its slot and blocks at the next step; safe to call at any time and twice."""
        self._cancel()
        if self._ended is None:
            self._ended = SynthesisFailed("cancelled by its reader")
            while not self._items.empty():
                left = self._items.get_nowait()
                self._unread.bytes -= left.nbytes if isinstance(left, np.ndarray) else 0
            self._items.put_nowait(self._ended)

    def put(self, item: Pcm | Usage | Exception) -> None:
        """From any thread: the next audio, or the end. Nobody is left to read it once the event loop is closed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._receive, item)

    def _receive(self, item: Pcm | Usage | Exception) -> None:
        if self._ended is None:  # else nobody reads it any more
            self._unread.bytes += item.nbytes if isinstance(item, np.ndarray) else 0
            self._items.put_nowait(item)


class Dictation(SpeechStream):
    """A stream whose text arrives in pieces: each sentence is spoken as soon as it is complete.

    Text in from one task, audio out in the same way as of any stream, in another. It ends when `finish` was called and
    all is spoken; with no audio, and a usage of nothing, where no text could be said.
    """

    def __init__(
        self,
        cancel: Callable[[], None],
        add: Callable[[str, bool], Awaitable[None]],
        unread: Unread | None = None,
    ) -> None:
        """`add` takes a piece of text and whether it is the last."""
        super().__init__(cancel, unread)
        self._add = add
        self._order = asyncio.Lock()
        self._finished = False

    async def append(self, text: str) -> None:
        """The next piece, cut anywhere. What comes after the stream has ended is spoken by nobody.

        Raises `Unspeakable` for a sentence that does not fit, which is left out, and ValueError after `finish`.
        """
        async with self._order:
            if self._finished:
                raise ValueError("the text was finished; open another dictation")
            await self._add(text, False)

    async def finish(self) -> None:
        """No more text comes; safe to call twice. Raises `Unspeakable` for a last sentence that does not fit."""
        async with self._order:
            if not self._finished:
                self._finished = True
                await self._add("", True)
