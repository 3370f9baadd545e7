"""Errors as OpenAI writes them, `{"error": {"message", "type", "param", "code"}}`, with the status that fits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from cosyvoice_worker.engine.requests import Refused, SynthesisFailed, Unspeakable


class ApiError(Exception):
    """An answer other than success. `message` names the field, the value seen and the mend."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        error_type = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            error_type = "rate_limit_error"
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}

    def renamed(self, params: Mapping[str, str]) -> ApiError:
        """The same for an API that calls the field something else; messages begin with its name."""
        theirs = params.get(self.param or "")
        if theirs is None:
            return self
        message = re.sub(rf"^{self.param}\b", theirs, self.message)
        return ApiError(self.status, message, param=theirs, code=self.code, headers=self.headers)

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """400 for one field."""
    return ApiError(400, message, param=param, code=code)


def model_not_found(asked: str, served: str) -> ApiError:
    """404, as OpenAI answers."""
    message = f"model {asked[:80]!r} is not served here; use {served!r}"
    return ApiError(404, message, param="model", code="model_not_found")


def refused(refusal: Refused) -> ApiError:
    """What is not taken now: 503 before and after this worker's time (ask another), else 429; when to come back."""
    headers = {"Retry-After": str(max(1, math.ceil(refusal.retry_after)))}
    if refusal.reason == "Draining":
        return ApiError(503, "this worker is shutting down; try again", code="draining", headers=headers)
    if refusal.reason == "NotReady":
        return ApiError(503, "this worker still loads its model; try again", code="not_ready", headers=headers)
    return ApiError(
        429,
        f"this worker is busy ({refusal.reason}); try again in {headers['Retry-After']} s",
        code="rate_limit_exceeded",
        headers=headers,
    )


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an error that the engine or the API raised for its request."""
    if isinstance(error, Refused):
        return refused(error)
    if isinstance(error, Unspeakable):
        return invalid("input", str(error))
    if isinstance(error, SynthesisFailed):
        return ApiError(500, f"the speech could not be made: {error}", code="synthesis_failed")
    if isinstance(error, ApiError):
        return error
    return ApiError(500, "the worker failed on this request; its log has the cause")


def outcome(answer: ApiError) -> str:
    """The name under which such an answer is counted."""
    if answer.status == 429:
        return "refused"
    if answer.status == 503:
        return "draining"
    return "invalid" if answer.status < 500 else "failed"


def install(app: FastAPI) -> None:
    """Every answer to a wrong request takes the one form; failures take it in `_RequestHeaders`."""

    async def api_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response()

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message = {
            404: f"no such path: {request.method} {request.url.path}",
            405: f"{request.method} is not allowed on {request.url.path}",
        }.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=error.headers).response()

    async def not_taken(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Refused)
        return refused(error).response()

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(Refused, not_taken)
    app.add_exception_handler(HTTPException, http_error)
