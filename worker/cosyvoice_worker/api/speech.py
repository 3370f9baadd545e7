"""`POST /v1/audio/speech`: text in, audio out while it is made."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cosyvoice_worker.api import errors
from cosyvoice_worker.api.account import Account
from cosyvoice_worker.api.choice_of_voice import fetched_recording, named_voice, recorded_voice
from cosyvoice_worker.api.errors import ApiError, invalid
from cosyvoice_worker.api.metrics import Metrics
from cosyvoice_worker.api.speech_request import OPENAI_MODELS, SpeechRequest, parse
from cosyvoice_worker.audio.encoders import FORMATS, Encoder, Format, Pcm
from cosyvoice_worker.engine.frontend.text import speakable, without_control_tokens
from cosyvoice_worker.engine.requests import Refused, SynthesisFailed, SynthesisRequest, Unspeakable, Voice

if TYPE_CHECKING:
    from cosyvoice_worker.lifecycle import Worker
    from cosyvoice_worker.scheduling.service import SpeechStream

log = logging.getLogger(__name__)
router = APIRouter()

_T = TypeVar("_T")

DEFAULT_FORMAT = "mp3"
"""OpenAI's default."""
WRITE_BYTES = 16 << 10
"""Given to a connection at once: a third of a second of raw samples."""


@router.post(
    "/v1/audio/speech",
    summary="Speak a text",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": SpeechRequest.model_json_schema()}},
        }
    },
    responses={
        200: {"description": "Audio, streamed as it is made", "content": {f.content_type: {} for f in FORMATS.values()}}
    },
)
async def speech(request: Request) -> Response:
    async def asked() -> tuple[SpeechRequest, bytes | None]:
        _no_foreign_page(request)
        said = parse(await request.body())
        return said, said.recording

    return await answer_with_speech(request, asked)


async def answer_with_speech(
    request: Request,
    read: Callable[[], Awaitable[tuple[SpeechRequest, bytes | None]]],
    *,
    streaming: bool = True,
    params: Mapping[str, str] | None = None,
) -> Response:
    """The answer to a request that `read` reads: what it asks for, and the recording that came with it.

    `streaming`: as in `SynthesisRequest`. `params`: what this API calls our fields, for its errors. Raises `ApiError`.
    """
    worker: Worker = request.app.state.worker
    metrics: Metrics = request.app.state.metrics
    request_id: str = request.scope["state"]["request_id"]
    started = time.perf_counter()
    try:
        asked, recording = await read()
        check_text(asked.input)
        audio_format = chosen_format(asked, DEFAULT_FORMAT)
        service = worker.ready_service()
        retry_key = _retry_key(request, asked)
        refusal = service.would_refuse(len(asked.input.encode("utf-8", "surrogatepass")), retry_key)
        if refusal is not None:
            raise refusal
        synthesis = await synthesis_request(
            request.app, asked, recording, request_id=request_id, retry_key=retry_key, streaming=streaming
        )
        stream = await service.submit(synthesis)
    except (ApiError, Refused, Unspeakable) as error:
        answer = errors.as_api_error(error).renamed(params or {})
        metrics.requests.labels(errors.outcome(answer)).inc()
        log.info("not taken", extra={"request_id": request_id, "status": answer.status, "reason": answer.message})
        raise answer from None
    if worker.settings.log_texts:
        log.info("text", extra={"request_id": request_id, "text": asked.input})
    return SpeechResponse(
        stream,
        audio_format,
        sse=asked.stream_format == "sse",
        sample_rate=service.sample_rate,
        stall_seconds=worker.settings.write_stall_seconds,
        account=Account(
            metrics,
            request_id,
            started,
            synthesis.voice.name,
            asked.response_format or DEFAULT_FORMAT,
            api_key=request.scope["state"]["api_key"],
        ),
    )


def _no_foreign_page(request: Request) -> None:
    """415 for what a page of any other site can send unasked: a browser asks first before it sends JSON as JSON."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if "origin" in request.headers and content_type != "application/json":
        raise ApiError(
            415,
            f"Content-Type {content_type[:80]!r} is not taken from a browser; send application/json",
            code="unsupported_media_type",
        )


def _retry_key(request: Request, asked: SpeechRequest) -> str:
    """The same for a request and its retries: the client's own key, or where it comes from and what it says."""
    said = request.headers.get("idempotency-key")
    if said is None:
        client = request.client.host if request.client else ""
        said = f"{client}\n{asked.voice_name}\n{asked.input}"
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def check_text(text: str) -> None:
    """A 400 for a text that nothing can be said of."""
    if not speakable(text):
        message = "input holds nothing to say; send a text with at least one letter or digit"
        raise invalid("input", message, "empty_input")


def chosen_format(asked: SpeechRequest, default: str) -> Format:
    """The format to make, or a 400 that names those there are."""
    name = asked.response_format or default
    if name not in FORMATS:
        raise invalid("response_format", f"response_format {name!r} is not available here; use {', '.join(FORMATS)}")
    return FORMATS[name]


async def synthesis_request(
    app: FastAPI,
    asked: SpeechRequest,
    recording: bytes | None,
    *,
    request_id: str,
    retry_key: str = "",
    streaming: bool = True,
) -> SynthesisRequest:
    """What the engine is asked for. Raises `ApiError` where the model or the voice is none of ours."""
    worker: Worker = app.state.worker
    served = worker.settings.served_name
    if asked.model and asked.model.strip().casefold() not in (served.casefold(), *OPENAI_MODELS):
        raise errors.model_not_found(asked.model, served)
    return SynthesisRequest(
        request_id=request_id,
        text=asked.input,
        voice=await _voice(app, asked, recording),
        instruct=without_control_tokens(asked.instructions or "").strip(),
        language=(asked.language or "").strip(),
        seed=asked.seed,
        retry_key=retry_key,
        streaming=streaming,
        speed=asked.speed or 1.0,
    )


async def _voice(app: FastAPI, asked: SpeechRequest, recording: bytes | None) -> Voice:
    """The voice of the recording that came with the request, or the one it names."""
    if asked.recording_address:
        recording = await fetched_recording(app, asked.recording_address)
    if recording is not None:
        return await recorded_voice(app, recording, asked.ref_text or "")
    if asked.ref_text:
        raise invalid("ref_text", "ref_text comes without ref_audio; send the recording whose words it has")
    return await named_voice(app, asked.voice_name)


class _Interrupted(Exception):
    """The stream failed after its first byte. Raised through to the server, which then closes the connection without
    the chunk that would mark a complete body."""


class SpeechResponse(Response):
    """Sends audio while it is made. The status waits for the first audio: a failure before it is an honest error."""

    def __init__(
        self,
        stream: SpeechStream,
        audio_format: Format,
        *,
        sse: bool,
        sample_rate: int,
        stall_seconds: float,
        account: Account,
    ) -> None:
        super().__init__(
            media_type="text/event-stream" if sse else audio_format.content_type,
            headers={"X-Sample-Rate": str(sample_rate), "X-Audio-Channels": "1", "Cache-Control": "no-store"},
        )
        del self.headers["content-length"]
        self._stream = stream
        self._format = audio_format
        self._sse = sse
        self._sample_rate = sample_rate
        self._stall_seconds = stall_seconds
        self._account = account

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        speaking = asyncio.create_task(self._speak(scope, receive, send))
        leaving = asyncio.create_task(_client_left(receive))
        try:
            await asyncio.wait({speaking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if speaking.done():
                speaking.result()
            else:
                self._account.ended("cancelled")
        finally:
            self._stream.cancel()
            speaking.cancel()
            leaving.cancel()
            await asyncio.gather(speaking, leaving, return_exceptions=True)

    async def _speak(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._stream, None)
        except (Refused, Unspeakable, SynthesisFailed) as error:
            answer = errors.as_api_error(error)
            self._account.ended(errors.outcome(answer), str(error))
            await answer.response()(scope, receive, send)
            return
        if first is None:
            self._account.ended("failed", "the engine gave no audio")
            await ApiError(500, "no audio was made for this input", code="synthesis_failed").response()(
                scope, receive, send
            )
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for piece in self._pieces(first):
                await self._write(send, piece)
        except TimeoutError:
            self._account.ended("cancelled", f"the client read nothing for {self._stall_seconds:.0f} s")
            raise _Interrupted("write stall") from None
        except Exception as error:
            self._account.ended("interrupted", repr(error))
            if self._sse:
                await self._write(send, _event({"type": "error", **errors.as_api_error(error).body()}))
            raise _Interrupted(str(error)) from error
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self._account.ended("completed")

    async def _pieces(self, first: Pcm) -> AsyncIterator[bytes]:
        """Bytes of the body in the order in which they are sent."""
        encoder = await self._off_loop(self._format.encoder, self._sample_rate)
        yield self._framed(await self._encoded(encoder, first))
        async for pcm in self._stream:
            yield self._framed(await self._encoded(encoder, pcm))
        yield self._framed(await self._off_loop(encoder.finish))
        if self._sse:
            usage = self._stream.usage
            tokens = (usage.text_tokens, usage.speech_tokens) if usage else (0, 0)
            counts = {"input_tokens": tokens[0], "output_tokens": tokens[1], "total_tokens": sum(tokens)}
            yield _event({"type": "speech.audio.done", "usage": counts})

    async def _encoded(self, encoder: Encoder, pcm: Pcm) -> bytes:
        self._account.audio(len(pcm) / self._sample_rate)
        return await self._off_loop(encoder.encode, pcm)

    async def _off_loop(self, work: Callable[..., _T], *args: object) -> _T:
        return work(*args) if self._format.cheap else await asyncio.to_thread(work, *args)

    def _framed(self, data: bytes) -> bytes:
        if not self._sse or not data:
            return data
        return _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})

    async def _write(self, send: Send, data: bytes) -> None:
        """TimeoutError when the client has read next to nothing for the stall time; in small parts, so that who reads
        slowly is not taken for one who does not read."""
        for start in range(0, len(data), WRITE_BYTES):
            async with asyncio.timeout(self._stall_seconds):
                part = data[start : start + WRITE_BYTES]
                await send({"type": "http.response.body", "body": part, "more_body": True})


def _event(data: dict[str, object]) -> bytes:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
