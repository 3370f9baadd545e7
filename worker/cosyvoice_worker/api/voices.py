"""`/v1/audio/voices`: the voices there are, and those that clients upload."""

from __future__ import annotations

import asyncio
import logging
import re
import unicodedata
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.datastructures import FormData, UploadFile

from cosyvoice_worker.api.choice_of_voice import recorded_voice
from cosyvoice_worker.api.errors import ApiError, invalid
from cosyvoice_worker.api.origins import refuse_foreign_page
from cosyvoice_worker.api.speech_request import MAX_CHARACTERS
from cosyvoice_worker.engine.voices import KnownVoice, VoiceBook, key_of

if TYPE_CHECKING:
    from cosyvoice_worker.lifecycle import Worker
    from cosyvoice_worker.voices.store import VoiceStore

log = logging.getLogger(__name__)
router = APIRouter()

_AUDIO_FIELDS = ("audio_sample", "audio")
"""OpenAI's name, and the plain one."""
_NAME = re.compile(r"[\w][\w .\-]{0,62}[\w]|[\w]")
"""Letters and digits of any script."""

_UPLOAD = {
    "type": "object",
    "required": ["name", "audio_sample"],
    "properties": {
        "name": {"type": "string", "maxLength": 64, "description": "Letters, digits, blanks, dots, dashes."},
        "audio_sample": {"type": "string", "format": "binary", "description": "wav, flac, ogg or mp3; best 3 to 10 s."},
        "ref_text": {"type": "string", "maxLength": MAX_CHARACTERS, "description": "Ours: what is said in it."},
    },
}


@router.get("/v1/audio/voices", summary="Voices, and the aliases that lead to them")
async def voices(request: Request) -> dict[str, object]:
    worker: Worker = request.app.state.worker
    book = worker.voices().book
    listed = [_voice(known) for known in book.voices] + _aliases(book)
    return {"object": "list", "data": listed, "has_more": False, "voices": listed}


@router.post(
    "/v1/audio/voices",
    summary="Upload a voice; it replaces the uploaded one of the same name",
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD}}}},
)
async def upload(request: Request) -> dict[str, object]:
    worker: Worker = request.app.state.worker
    refuse_foreign_page(request.headers, worker.settings.cors_origins)  # a form is sent without asking
    catalogue = worker.voices()
    store = _store(request)
    async with request.form(max_files=4, max_fields=32) as form:
        name = _name(form)
        text = _text(form)
        _free(catalogue.book, name)
        uploaded = [known for known in catalogue.book.voices if known.source == "uploaded"]
        if catalogue.book.source(name) != "uploaded" and len(uploaded) >= worker.settings.max_uploaded_voices:
            raise ApiError(
                400, f"{len(uploaded)} voices are uploaded, which is the limit; delete one", code="too_many_voices"
            )
        recording = await _recording(form)
    await recorded_voice(request.app, recording, text, "audio_sample")
    try:
        stored = await asyncio.to_thread(store.put, name, text, recording)
        await asyncio.to_thread(catalogue.refresh_uploads)
    except OSError as error:
        raise _unwritable(request, store, error) from None
    log.info("voice uploaded", extra=_caller(request) | {"voice": name})
    return _voice(KnownVoice(stored.name, "uploaded", created=stored.created))


@router.delete("/v1/audio/voices/{name:path}", summary="Delete an uploaded voice")
async def delete(name: str, request: Request) -> dict[str, object]:
    worker: Worker = request.app.state.worker
    catalogue = worker.voices()
    store = _store(request)
    known = {key_of(voice.name): voice for voice in catalogue.book.voices}.get(key_of(name))
    if known is not None and known.source != "uploaded":
        raise invalid("name", f"voice {known.name!r} was not uploaded; it cannot be deleted here", "voice_not_uploaded")
    try:
        removed = await asyncio.to_thread(store.remove, name)
        await asyncio.to_thread(catalogue.refresh_uploads)
    except OSError as error:
        raise _unwritable(request, store, error) from None
    if not removed:
        raise ApiError(404, f"no uploaded voice is called {name[:256]!r}", param="name", code="voice_not_found")
    log.info("voice deleted", extra=_caller(request) | {"voice": name})
    return {"id": name, "object": "audio.voice.deleted", "deleted": True}


def _caller(request: Request) -> dict[str, str]:
    state = request.scope["state"]
    return {"request_id": state["request_id"], "api_key": state["api_key"]}


def _voice(known: KnownVoice) -> dict[str, object]:
    """OpenAI's fields, then ours."""
    return {
        "id": known.name,
        "name": known.name,
        "object": "audio.voice",
        "created_at": int(known.created),
        "type": "audio_sample",
        "source": known.source,
        "available": not known.problem,
    }


def _aliases(book: VoiceBook) -> list[dict[str, object]]:
    return [
        {"id": alias, "name": alias, "object": "audio.voice", "alias_of": target}
        for alias, target in book.aliases.items()
    ]


def _store(request: Request) -> VoiceStore:
    worker: Worker = request.app.state.worker
    store = worker.voices().store
    if store is None:
        raise ApiError(
            403,
            "voices cannot be uploaded here: the service has no voice store; its operator can set spec.voices.store",
            code="no_voice_store",
        )
    return store


def _name(form: FormData) -> str:
    given = form.get("name")
    if not isinstance(given, str) or not given.strip():
        raise invalid("name", "name is missing; say what the voice is called", "missing_required_parameter")
    name = unicodedata.normalize("NFC", given.strip())
    if not _NAME.fullmatch(name):
        raise invalid(
            "name",
            f"name {name[:80]!r} cannot be a voice's; use at most 64 letters, digits, blanks, dots and dashes, with "
            f"a letter or digit at both ends",
        )
    return name


def _free(book: VoiceBook, name: str) -> None:
    """409 for a name that already means another voice."""
    if book.source(name) not in ("", "uploaded"):
        message = f"name {name!r} already means a voice that was not uploaded; choose another"
        raise ApiError(409, message, param="name", code="voice_exists")


def _text(form: FormData) -> str:
    text = form.get("ref_text", "")
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise invalid("ref_text", f"ref_text must be a text of at most {MAX_CHARACTERS} characters")
    return text.strip()


async def _recording(form: FormData) -> bytes:
    for field in _AUDIO_FIELDS:
        part = form.get(field)
        if isinstance(part, UploadFile):
            return await part.read()
        if part is not None:
            raise invalid(field, f"{field} is a text; send the recording as a file")
    raise invalid("audio_sample", "audio_sample is missing; send the recording as a file", "missing_required_parameter")


def _unwritable(request: Request, store: VoiceStore, error: OSError) -> ApiError:
    log.error(
        "the voice store cannot be written",
        extra=_caller(request) | {"folder": str(store.folder), "error": str(error)},
    )
    return ApiError(500, f"the voice store cannot be written: {error.strerror}", code="voice_store_failed")
