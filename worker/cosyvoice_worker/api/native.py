"""CosyVoice's own HTTP server, route by route, so that what was written for it works unchanged.

Forms in, by POST or (as its own client does) GET with a body; raw 16-bit mono samples at the rate of the model out, no
header before them. Unlike there, a wrong field is a 400 in OpenAI's form that names it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from cosyvoice_worker.api.errors import invalid
from cosyvoice_worker.api.origins import refuse_foreign_page
from cosyvoice_worker.api.speech import answer_with_speech
from cosyvoice_worker.api.speech_request import SpeechRequest, checked

router = APIRouter()

_OURS = {"tts_text": "input", "spk_id": "voice", "instruct_text": "instructions", "prompt_text": "ref_text"}
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()} | {"ref_audio": "prompt_wav"}

_ROUTES: Mapping[str, Sequence[str]] = {
    "sft": ("tts_text", "spk_id"),
    "zero_shot": ("tts_text", "prompt_text", "prompt_wav"),
    "cross_lingual": ("tts_text", "prompt_wav"),
    "instruct": ("tts_text", "spk_id", "instruct_text"),
    "instruct2": ("tts_text", "instruct_text", "prompt_wav"),
}
"""Mode -> the fields of its form; each is required."""


def _route(fields: Sequence[str]) -> Callable[[Request], Awaitable[Response]]:
    async def inference(request: Request) -> Response:
        async def asked() -> tuple[SpeechRequest, bytes | None]:
            refuse_foreign_page(request.headers, request.app.state.worker.settings.cors_origins)
            async with request.form(max_files=1, max_fields=len(_OURS), max_part_size=1 << 20) as form:
                texts = {_OURS[name]: _text(form, name) for name in fields if name in _OURS}
                recording = await _recording(form) if "prompt_wav" in fields else None
            return checked(texts | {"response_format": "pcm"}), recording

        # As there, a sentence is decoded whole before it is sent.
        return await answer_with_speech(request, asked, streaming=False, params=_THEIRS)

    return inference


def _text(form: FormData, name: str) -> str:
    value = form.get(name)
    if isinstance(value, str) and value:
        return value
    raise invalid(name, f"{name} is missing; send a form with {name} in it", "missing_required_parameter")


async def _recording(form: FormData) -> bytes:
    value = form.get("prompt_wav")
    if isinstance(value, UploadFile):
        return await value.read()
    message = "prompt_wav is missing; send a multipart form with the recording as the file prompt_wav"
    raise invalid("prompt_wav", message, "missing_required_parameter")


def _schema(fields: Sequence[str]) -> dict[str, Any]:
    properties = {name: {"type": "string", **({"format": "binary"} if name == "prompt_wav" else {})} for name in fields}
    schema = {"type": "object", "required": list(fields), "properties": properties}
    forms = ["multipart/form-data"] + ([] if "prompt_wav" in fields else ["application/x-www-form-urlencoded"])
    return {"requestBody": {"required": True, "content": {form: {"schema": schema} for form in forms}}}


for _mode, _fields in _ROUTES.items():
    _path, _endpoint = f"/inference_{_mode}", _route(_fields)
    router.add_api_route(
        _path,
        _endpoint,
        methods=["POST"],
        name=f"inference_{_mode}",
        summary=f"CosyVoice's own API: {_mode}",
        openapi_extra=_schema(_fields),
        responses={
            200: {"description": "16-bit mono samples", "content": {"audio/pcm": {}}},
            400: {"description": "A field is wrong"},
        },
    )
    router.add_api_route(_path, _endpoint, methods=["GET"], include_in_schema=False)
