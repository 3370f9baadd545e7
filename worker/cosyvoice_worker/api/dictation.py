"""`WS /v1/audio/speech/stream`: text in pieces, audio out while the rest is still being written.

JSON from the client: `session.config` (fields of `POST /v1/audio/speech`), `input.text`, `input.done`, `input.cancel`.
To it: `audio.start`, audio as binary messages, `audio.done`, `session.done`; `error` at any time. The names are those
of vLLM-Omni's route of this path. One text at a time; after `session.done` the next may follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from cosyvoice_worker.api import errors
from cosyvoice_worker.api.account import Account
from cosyvoice_worker.api.authentication import SUBPROTOCOL
from cosyvoice_worker.api.errors import ApiError, invalid
from cosyvoice_worker.api.origins import refuse_foreign_page
from cosyvoice_worker.api.speech import chosen_format, synthesis_request
from cosyvoice_worker.api.speech_request import SpeechRequest, checked
from cosyvoice_worker.audio.encoders import Format
from cosyvoice_worker.engine.requests import Refused, SynthesisFailed, SynthesisRequest, Unspeakable, Usage

if TYPE_CHECKING:
    from cosyvoice_worker.lifecycle import Worker
    from cosyvoice_worker.scheduling.service import Dictation

log = logging.getLogger(__name__)
router = APIRouter()

_T = TypeVar("_T")

DEFAULT_FORMAT: Final = "wav"
MAX_CHARACTERS: Final = 16_384
"""Of one text: about twenty minutes of speech, which a slow reader may leave unread."""
MAX_SESSIONS: Final = 256
MAX_MESSAGE_BYTES: Final = 1 << 20
"""Of a message of a client, a recording in base64 included; all sessions together hold 256 MiB of them at most."""

_TRY_AGAIN_LATER, _RESTARTING, _FAILED, _DONE = 1013, 1012, 1011, 1000


class Sessions:
    """The sessions that are open; owned by the event loop."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[None]] = set()

    def join(self, task: asyncio.Task[None]) -> None:
        """Raises `Refused` when there are too many."""
        if len(self._open) >= MAX_SESSIONS:
            raise Refused("QueueFull", 5.0)
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def end(self, seconds: float) -> None:
        """Returns when all have ended, which they do by themselves in a worker that drains, or after `seconds`."""
        if self._open:
            await asyncio.wait(self._open, timeout=max(0.0, seconds))


@router.websocket("/v1/audio/speech/stream")
async def dictate(websocket: WebSocket) -> None:
    try:
        refuse_foreign_page(websocket.headers, websocket.app.state.worker.settings.cors_origins)
    except ApiError as error:
        await websocket.send_denial_response(error.response())
        return
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in websocket.scope["subprotocols"] else None)
    session = _Session(websocket)
    task = asyncio.current_task()
    assert task is not None
    try:
        websocket.app.state.sessions.join(task)
        await session.run()
    except (ApiError, Refused) as error:  # it cannot go on
        answer = errors.as_api_error(error)
        if isinstance(error, Refused):
            websocket.app.state.metrics.requests.labels(errors.outcome(answer)).inc()
        with contextlib.suppress(TimeoutError, WebSocketDisconnect):
            await session.tell_error(answer)
            await session.close(_TRY_AGAIN_LATER if answer.status in (429, 503) else _FAILED)
    except (TimeoutError, WebSocketDisconnect):
        pass  # it left, or reads nothing: the server cuts what is not sent
    except Exception as error:
        log.error("session failed", exc_info=error, extra={"request_id": session.id})
        with contextlib.suppress(TimeoutError, WebSocketDisconnect):
            await session.tell_error(error)
            await session.close(_FAILED)
    finally:
        session.leave()


@dataclass(slots=True)
class _Text:
    """A text that is being written or spoken."""

    dictation: Dictation
    speaking: asyncio.Task[None]
    characters: int = 0
    complete: bool = False


class _Session:
    """One connection: messages are read by one task, and what is spoken is sent by another."""

    def __init__(self, websocket: WebSocket) -> None:
        self._socket = websocket
        self._worker: Worker = websocket.app.state.worker
        self._asked: SpeechRequest | None = None
        self._template: SynthesisRequest | None = None
        self._text: _Text | None = None
        self._spoken = 0
        self._ends = time.monotonic() + self._worker.settings.session_seconds
        self.id: str = websocket.scope["state"]["request_id"]

    async def run(self) -> None:
        """Until the client leaves, a time is up or the worker drains. Raises what ends the session otherwise."""
        self._worker.ready_service()
        handlers = {
            "session.config": self._configure,
            "input.text": self._add,
            "input.done": self._finish,
            "input.cancel": self._cancel,
        }
        draining = asyncio.create_task(self._worker.leaving.wait())
        receiving = asyncio.create_task(self._socket.receive())
        heard = time.monotonic()
        try:
            while True:
                speaking = {self._text.speaking} if self._text else set()
                # Silence counts from the last message or from the end of what was spoken.
                idle = (
                    None if self._text and self._text.complete else heard + self._worker.settings.session_idle_seconds
                )
                ends = self._ends if idle is None else min(idle, self._ends)
                await asyncio.wait(
                    {receiving, draining, *speaking},
                    timeout=max(0.0, ends - time.monotonic()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if self._text and self._text.speaking.done():
                    text, self._text = self._text, None
                    text.speaking.result()
                    heard = time.monotonic()
                elif receiving.done():
                    message = receiving.result()
                    if message["type"] == "websocket.disconnect":
                        return
                    receiving = asyncio.create_task(self._socket.receive())
                    if await self._handled(message, handlers):
                        heard = time.monotonic()
                elif draining.done():
                    await self._wind_down(errors.refused(Refused("Draining", 1.0)), _RESTARTING)
                    return
                elif time.monotonic() >= ends:
                    await self._wind_down(self._time_is_up(), _DONE)
                    return
        finally:
            draining.cancel()
            receiving.cancel()
            await asyncio.gather(draining, receiving, return_exceptions=True)

    def leave(self) -> None:
        """Frees what the text that is being spoken holds."""
        if self._text:
            self._text.dictation.cancel()
            self._text.speaking.cancel()

    async def tell_error(self, error: Exception) -> None:
        answer = errors.as_api_error(error)
        more = {"retry_after": int(answer.headers["Retry-After"])} if "Retry-After" in answer.headers else {}
        await self._tell("error", message=answer.message, **answer.body(), **more)

    async def close(self, code: int) -> None:
        async with asyncio.timeout(self._worker.settings.write_stall_seconds):
            await self._socket.close(code)

    # --- what the client says -----------------------------------------------------------------------------------------

    async def _handled(
        self, message: Mapping[str, Any], handlers: Mapping[str, Callable[[dict[str, Any]], Awaitable[None]]]
    ) -> bool:
        """Whether the message was a good one; a bad one is answered with an error and changes nothing."""
        try:
            said = _parsed(message)
            kind = said.pop("type", None)
            handler = handlers.get(kind) if isinstance(kind, str) else None
            if handler is None:
                raise invalid("type", f"type {kind!r:.80} is none of {', '.join(handlers)}")
            await handler(said)
        except (ApiError, Unspeakable) as error:
            await self.tell_error(error)
            return False
        return True

    async def _configure(self, said: dict[str, Any]) -> None:
        if self._text:
            raise invalid(
                "type", "session.config comes while a text is spoken; wait for session.done, or send input.cancel"
            )
        asked = checked(said | {"input": ""})
        chosen_format(asked, DEFAULT_FORMAT)
        recording = asked.recording
        if recording is not None or asked.recording_address:
            self._refuse_if_full(0)
        self._template = await synthesis_request(self._socket.app, asked, recording, request_id=self.id)
        self._asked = asked

    async def _add(self, said: dict[str, Any]) -> None:
        piece = said.get("text")
        if not isinstance(piece, str):
            raise invalid("text", "text must be a string; send the next piece of the text in it")
        try:
            size = len(piece.encode())
        except UnicodeEncodeError:
            raise invalid("text", "text holds half of a surrogate pair; send valid Unicode") from None
        if self._text and self._text.complete:
            raise invalid("type", "input.text comes while the text before it is spoken; wait for session.done")
        if len(piece) + (self._text.characters if self._text else 0) > MAX_CHARACTERS:
            raise invalid(
                "text",
                f"text comes to more than {MAX_CHARACTERS} characters; send input.done, and the rest as the next text",
                "string_above_max_length",
            )
        if not self._text:
            if not piece.strip():
                return
            self._text = await self._begin(size)
        self._text.characters += len(piece)
        if self._worker.settings.log_texts:
            log.info("text", extra={"request_id": self.id, "text": piece})
        await self._text.dictation.append(piece)

    async def _begin(self, size: int) -> _Text:
        self._refuse_if_full(size)
        service = self._worker.ready_service()
        if self._template is None or self._asked is None:
            await self._configure({})
            assert self._template
            assert self._asked
        asked, request = self._asked, replace(self._template, request_id=f"{self.id}-{self._spoken}")
        dictation = await service.dictate(request)
        name = asked.response_format or DEFAULT_FORMAT
        account = Account(
            self._socket.app.state.metrics,
            request.request_id,
            time.perf_counter(),
            request.voice.name,
            name,
            api_key=self._socket.scope["state"]["api_key"],
            dictated=True,
        )
        speaking = asyncio.create_task(
            self._speak(dictation, name, chosen_format(asked, DEFAULT_FORMAT), service.sample_rate, account)
        )
        return _Text(dictation, speaking)

    def _refuse_if_full(self, size: int) -> None:
        client = self._socket.client.host if self._socket.client else ""
        refusal = self._worker.ready_service().would_refuse(size, f"{client}\n{self.id}")
        if refusal is not None:
            raise refusal

    async def _finish(self, said: dict[str, Any]) -> None:
        if self._text:
            self._text.complete = True
            await self._text.dictation.finish()
        else:
            await self._tell("session.done", total_sentences=0)

    async def _cancel(self, said: dict[str, Any]) -> None:
        text, self._text = self._text, None
        if text:
            text.dictation.cancel()
            text.speaking.cancel()
            await asyncio.gather(text.speaking, return_exceptions=True)
            self._spoken += 1
        await self._tell("session.done", total_sentences=0, cancelled=True)

    # --- what is spoken -----------------------------------------------------------------------------------------------

    async def _speak(
        self, dictation: Dictation, name: str, audio_format: Format, sample_rate: int, account: Account
    ) -> None:
        """Sends the audio of one text and what belongs to it. Raises what ends the session: `ApiError`, or it left."""
        sent = -1  # bytes; before the start there is nothing to be done with
        try:
            encoder = await _off_loop(audio_format, audio_format.encoder, sample_rate)
            async for pcm in dictation:
                if sent < 0:
                    sent = 0
                    await self._tell(
                        "audio.start", sentence_index=self._spoken, format=name, sample_rate=sample_rate, channels=1
                    )
                account.audio(len(pcm) / sample_rate)
                sent += await self._send(await _off_loop(audio_format, encoder.encode, pcm))
            if sent < 0:
                raise invalid("text", "text holds nothing to say; send at least one letter or digit", "empty_input")
            sent += await self._send(await _off_loop(audio_format, encoder.finish))
        except asyncio.CancelledError:
            account.ended("cancelled")
            raise
        except (TimeoutError, WebSocketDisconnect) as error:
            account.ended("cancelled", "the client reads nothing" if isinstance(error, TimeoutError) else "it left")
            raise
        except ApiError as error:  # nothing was said, which is no reason to part
            account.ended("invalid", error.message)
            await self.tell_error(error)
            await self._tell("session.done", total_sentences=0)
            return
        except (Refused, SynthesisFailed) as error:
            answer = errors.as_api_error(error)
            account.ended(errors.outcome(answer) if sent < 0 else "interrupted", str(error))
            raise answer from None
        account.ended("completed")
        index, self._spoken = self._spoken, self._spoken + 1
        await self._tell("audio.done", sentence_index=index, total_bytes=sent, usage=_usage(dictation.usage))
        await self._tell("session.done", total_sentences=1)

    async def _wind_down(self, reason: ApiError, code: int) -> None:
        """Lets the text that is here be spoken to its end, and parts."""
        if self._text:
            with contextlib.suppress(Unspeakable):
                await self._text.dictation.finish()
            leaving = asyncio.create_task(self._left())
            try:
                await asyncio.wait({leaving, self._text.speaking}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
            if not self._text.speaking.done():
                return
            self._text.speaking.result()
        await self.tell_error(reason)
        await self.close(code)

    async def _left(self) -> None:
        while (await self._socket.receive())["type"] != "websocket.disconnect":
            pass

    def _time_is_up(self) -> ApiError:
        settings = self._worker.settings
        if time.monotonic() >= self._ends:
            return ApiError(
                400, f"a session lasts {settings.session_seconds:g} s at most; connect again", code="session_expired"
            )
        return ApiError(
            400, f"nothing was said for {settings.session_idle_seconds:g} s; connect again", code="session_idle"
        )

    async def _tell(self, kind: str, **fields: object) -> None:
        await self._within_stall_time(self._socket.send_text(json.dumps({"type": kind} | fields)))

    async def _send(self, data: bytes) -> int:
        if data:
            await self._within_stall_time(self._socket.send_bytes(data))
        return len(data)

    async def _within_stall_time(self, sending: Awaitable[None]) -> None:
        """TimeoutError when the client has read nothing for the stall time."""
        async with asyncio.timeout(self._worker.settings.write_stall_seconds):
            await sending


def _parsed(message: Mapping[str, Any]) -> dict[str, Any]:
    try:
        said = json.loads(message.get("text") or "")
    except ValueError:
        said = None
    except RecursionError:
        said = None
    if not isinstance(said, dict):
        raise ApiError(
            400, 'a message must be a JSON object such as {"type": "input.text", "text": "..."}', code="invalid_json"
        )
    return said


def _usage(usage: Usage | None) -> dict[str, int]:
    tokens = (usage.text_tokens, usage.speech_tokens) if usage else (0, 0)
    return {"input_tokens": tokens[0], "output_tokens": tokens[1], "total_tokens": sum(tokens)}


async def _off_loop(audio_format: Format, work: Callable[..., _T], *args: object) -> _T:
    return work(*args) if audio_format.cheap else await asyncio.to_thread(work, *args)
