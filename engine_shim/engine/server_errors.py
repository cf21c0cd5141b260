"""Errors in OpenAI's shape, and a limit on request bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from checkengine.engine_shim.engine.runtime import EngineFailedError, NotAcceptingError, RequestRefusedError

MOST_LETTERS = 1000
"""Of an error's message."""


class ApiError(Exception):
    """Becomes {"error": {"message", "type", "param", "code"}} with an HTTP status."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        # Clients choose parts of it: a lone surrogate could not be sent, and a long name would come back whole.
        message = message.encode("utf-8", "backslashreplace").decode()
        if len(message) > MOST_LETTERS:
            message = message[:MOST_LETTERS] + "…"
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": "1"} if self.status in (429, 503) else {}


def api_error(error: Exception) -> ApiError:
    """The ApiError for what the runtime raises."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestRefusedError):
        return ApiError(str(error), code="request_refused")
    if isinstance(error, NotAcceptingError):
        return ApiError(str(error), status=503, kind="server_error", code="not_accepting")
    if isinstance(error, EngineFailedError):
        return ApiError(str(error), status=500, kind="server_error", code="engine_failed")
    return ApiError("internal error; see the server's log", status=500, kind="server_error", code="internal_error")


def install_error_handlers(app: FastAPI) -> None:
    for kind in (ApiError, RequestRefusedError, NotAcceptingError, EngineFailedError, Exception):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_http)


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    return respond(api_error(error))


def respond(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, headers=dict(error.headers))


async def _answer_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return respond(ApiError(f"the body is not valid JSON: {reason}", code="invalid_json"))
    param = parameter_name(first["loc"])
    if first["type"] == "extra_forbidden":
        message = f"{param or repr(first['loc'][-1])}: this server does not know the parameter"
        return respond(ApiError(message, param=param, code="unknown_parameter"))
    where = f"{param}: " if param else ""
    return respond(ApiError(f"{where}{first['msg']}", param=param, code="invalid_value"))


def parameter_name(location: Sequence[Any]) -> str | None:
    """("body", "messages", 0, "role") is messages[0].role; names of a union's members are left out."""
    name = ""
    for part in location[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part not in _UNION_MEMBERS:
            name += f".{part}" if name else part
    return name or None


_UNION_MEMBERS = {"str", "int", "float", "bool", "TextPart", "NamedToolChoice"}


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return respond(ApiError(f"no such address: {request.method} {request.url.path}", status=404, code="not_found"))
    code = {405: "method_not_allowed", 413: "body_too_large"}.get(error.status_code, "bad_request")
    answer = respond(ApiError(str(error.detail), status=error.status_code, code=code))
    answer.headers.update(error.headers or {})
    return answer


class BodyLimit:
    """ASGI middleware: refuses bodies above `maximum` bytes, whatever their Content-Length says."""

    def __init__(self, app: ASGIApp, maximum: int) -> None:
        self.app, self.maximum = app, maximum

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.maximum:
            return await respond(self._error())(scope, receive, send)
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.maximum:
                raise HTTPException(413, self._message())
            return message

        await self.app(scope, counted, send)
        return None

    def _message(self) -> str:
        return f"the body has more than {self.maximum} bytes (server.max_body_bytes)"

    def _error(self) -> ApiError:
        return ApiError(self._message(), status=413, code="body_too_large")
