"""The body of `POST /v1/audio/speech`, checked before any work is done."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from cosyvoice_worker.api.errors import ApiError, invalid

MAX_CHARACTERS = 4096
"""OpenAI's limit for `input`, and for `instructions`."""

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Names that clients send without being told: they mean the model that is served."""


class VoiceId(BaseModel):
    id: Annotated[str, StringConstraints(max_length=256)]


class SpeechRequest(BaseModel):
    """OpenAI's fields, then ours. Unknown keys are ignored, and null is the default: clients send both."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    input: Annotated[str, Field(description="The text to speak, at most 4096 characters.")]
    model: Annotated[str | None, Field(description="A name from /v1/models; left out: the one that is served.")] = None
    voice: Annotated[
        Annotated[str, StringConstraints(max_length=256)] | VoiceId | None,
        Field(description="A name from /v1/audio/voices, or OpenAI's; left out: the default voice."),
    ] = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float | None, Field(ge=0.25, le=4.0)] = None
    instructions: Annotated[str | None, Field(max_length=MAX_CHARACTERS, description="How to speak.")] = None
    stream_format: Literal["audio", "sse"] | None = None
    language: Annotated[
        str | None, Field(max_length=35, description="Ours: ISO 639-1 code of the text; left out: told from the text.")
    ] = None
    seed: Annotated[
        int | None, Field(ge=0, lt=2**63, description="Ours: the same seed and text give the same audio (CPU, fp32).")
    ] = None

    ref_audio: Annotated[
        str | None,
        Field(
            description="Ours: a recording (base64, a data URI, or an address where the service allows that) whose "
            "voice speaks; wav, mp3, m4a, webm, ogg or flac, 3 to 10 s."
        ),
    ] = None
    ref_text: Annotated[
        str | None,
        Field(
            max_length=MAX_CHARACTERS,
            description="Ours: what is said in `ref_audio`; left out: only its sound is used.",
        ),
    ] = None

    @property
    def recording(self) -> bytes | None:
        """The bytes of `ref_audio`, or a 400; None also for an address."""
        if not self.ref_audio or self.recording_address:
            return None
        head, comma, data = self.ref_audio.partition(",")
        try:
            return base64.b64decode("".join((data if comma else head).split()), validate=True)
        except ValueError:
            raise invalid("ref_audio", "ref_audio is no base64; send base64, or data:audio/wav;base64,...") from None

    @property
    def recording_address(self) -> str | None:
        """`ref_audio` where it is an address to fetch."""
        address = (self.ref_audio or "").strip()
        return address if re.match(r"(?!data:)[A-Za-z][A-Za-z0-9.-]*:", address) else None

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


def parse(body: bytes) -> SpeechRequest:
    """The request in `body`, or a 400 that names the field, the value and the mend. The Content-Type is not read."""
    return _validated(lambda: SpeechRequest.model_validate_json(body or b"{}"))


def checked(fields: Mapping[str, object]) -> SpeechRequest:
    """The same of fields that came in another form than JSON."""
    return _validated(lambda: SpeechRequest.model_validate(fields))


def _validated(read: Callable[[], SpeechRequest]) -> SpeechRequest:
    try:
        request = read()
    except ValidationError as error:
        raise _refusal(error) from None
    if len(request.input) > MAX_CHARACTERS:
        raise invalid(
            "input",
            f"input has {len(request.input)} characters, at most {MAX_CHARACTERS} are taken; send it in pieces",
            "string_above_max_length",
        )
    return request


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors()[0]
    if first["type"] == "json_invalid" or not first["loc"]:
        return ApiError(400, f"the body is not a JSON object: {first['msg']}", code="invalid_json")
    field = str(first["loc"][0])
    if first["type"] == "missing":
        return invalid(field, f"{field} is missing; send the text to speak in it", "missing_required_parameter")
    if first["type"] == "string_unicode":
        return invalid(field, f"{field} holds half of a surrogate pair; send valid Unicode")
    if field == "voice":
        return invalid(field, 'voice must be a name, or an object such as {"id": "name"}')
    if field == "response_format" and first["type"] == "literal_error":
        message = "is none of mp3, opus, aac, flac, wav, pcm"
    else:
        message = first["msg"].removeprefix("Input ").replace("should", "must", 1)
    return invalid(field, f"{field} {_shown(field, first['input'])} {message}".replace("  ", " "))


def _shown(field: str, value: object) -> str:
    """The value seen; what people wrote or said stays out of messages, which are logged."""
    if field in ("input", "instructions", "ref_text", "ref_audio"):
        return ""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
