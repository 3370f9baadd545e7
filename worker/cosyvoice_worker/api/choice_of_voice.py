"""From what a request says to the voice that speaks: a name, or a recording that came along."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI

from cosyvoice_worker.api.errors import invalid
from cosyvoice_worker.api.fetching import Fetcher, FetchError
from cosyvoice_worker.engine.frontend.recording import RecordingError
from cosyvoice_worker.engine.requests import Voice
from cosyvoice_worker.lifecycle import Worker
from cosyvoice_worker.voices.catalogue import VoiceUnavailable

RECORDINGS_AT_ONCE = 2
"""Recordings that are made into voices at the same time: each takes a core."""


async def named_voice(app: FastAPI, name: str | None, param: str = "voice") -> Voice:
    """The voice called `name`, the default for None; a 400 for `param` where there is none, or it cannot speak."""
    worker: Worker = app.state.worker
    catalogue = worker.voices()
    known = catalogue.book.find(name)
    if known is None:
        names = ", ".join(catalogue.book.names[:20])
        raise invalid(param, f"{param} {(name or '')[:256]!r} is not known here; use one of {names}", "voice_not_found")
    try:
        voice = catalogue.at_hand(known)
        if voice is None:
            async with _recordings(app):
                voice = await asyncio.to_thread(catalogue.read, known)
    except VoiceUnavailable as error:
        raise invalid(param, f"{param} {known.name!r} is not available: {error}", "voice_unavailable") from None
    return voice


async def recorded_voice(app: FastAPI, recording: bytes, text: str, param: str = "ref_audio") -> Voice:
    """The voice of an encoded recording in which `text` is said; a 400 for `param` where it cannot be one."""
    worker: Worker = app.state.worker
    recorded = worker.recorded_voices()
    try:
        async with _recordings(app):
            return await asyncio.to_thread(recorded.voice, recording, text)
    except RecordingError as error:
        raise invalid(param, f"{param}: {error}") from None


async def fetched_recording(app: FastAPI, address: str) -> bytes:
    """What `address` leads to; a 400 where none is fetched here, or there is nothing that may be."""
    fetcher: Fetcher | None = app.state.fetcher
    if fetcher is None:
        message = "ref_audio is an address; addresses are not fetched here, send the audio in base64"
        raise invalid("ref_audio", message, "address_not_allowed")
    try:
        return await fetcher.fetch(address)
    except FetchError as error:
        raise invalid("ref_audio", f"ref_audio is an address that cannot be fetched: {error}", "not_fetched") from None


def _recordings(app: FastAPI) -> asyncio.Semaphore:
    recordings: asyncio.Semaphore = app.state.recordings
    return recordings
