"""The same guards inside a server that is itself an ASGI app: vLLM, a FastAPI service.

Limits: no retry and no routing, and what the app sends compressed passes without guards. Where a guard stops an answer
the app is told that its client has left, which is what makes a server free the sequence.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from checkengine.engine_shim.proxy import actions
from checkengine.engine_shim.proxy.headers import header
from checkengine.engine_shim.proxy.inspecting import Inspector
from checkengine.engine_shim.proxy.parts import ProxyParts
from checkengine.engine_shim.proxy.requests import OPERATIONS, Operation, facts_of
from checkengine.engine_shim.proxy.watch import AnswerWatch
from checkengine.engine_shim.proxy.whole import WholeAnswer

App = Callable[[Any, Any, Any], Awaitable[None]]
GONE = {"type": "http.disconnect"}


class GuardedApp:
    """Pure ASGI; everything but POSTs of OpenAI's generating paths passes untouched."""

    def __init__(self, app: App, parts: ProxyParts) -> None:
        self._app, self._parts = app, parts
        self._prefix, self._number = secrets.token_hex(4), 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        operation = OPERATIONS.get(scope["path"], Operation.OTHER) if scope["type"] == "http" else Operation.OTHER
        guarded = operation.is_read and scope["method"] == "POST" and self._parts.enabled
        if not guarded or self._parts.bench is None:
            await self._app(scope, receive, send)
            return
        self._number += 1
        guarding = _Guarding(self._parts, f"{self._prefix}-{self._number}", operation, receive, send)
        try:
            await self._app(scope, guarding.receive, guarding.send)
        except OSError:
            if not guarding.is_stopped:
                raise
        finally:
            guarding.close()


class _Guarding:
    """Of one request."""

    def __init__(self, parts: ProxyParts, identity: str, operation: Operation, receive: Any, send: Any) -> None:
        self._parts, self._identity, self._operation = parts, identity, operation
        self._receive, self._send = receive, send
        self._body: list[bytes] = []
        self._size = 0
        self._start: dict[str, Any] = {}
        self._watch: AnswerWatch | None = None
        self._inspector: Inspector | None = None
        self._whole: list[bytes] | None = None
        self.is_stopped = False

    async def receive(self) -> Any:
        if self.is_stopped:
            return GONE
        message = await self._receive()
        if message["type"] == "http.request" and self._size <= self._parts.settings.max_body_bytes:
            self._body.append(message.get("body", b""))
            self._size += len(self._body[-1])
        return message

    async def send(self, message: Any) -> None:
        if self.is_stopped:
            raise OSError("a guard stopped this answer")
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._inspector is not None:
            await self._part(self._inspector, message)
        elif self._whole is not None:
            await self._gather(self._whole, message)
        else:
            await self._send(message)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    async def _begin(self, message: Any) -> None:
        headers = [(name.lower(), value) for name, value in message.get("headers", [])]
        kind = header(headers, b"content-type").partition(b";")[0].strip().lower()
        plain = header(headers, b"content-encoding") in (b"", b"identity")
        if message["status"] != 200 or not plain or kind not in (b"text/event-stream", b"application/json"):
            await self._send(message)
            return
        facts = facts_of(self._operation, b"".join(self._body))
        parts = self._parts
        assert parts.bench is not None
        batch = parts.settings.batch_chunks
        self._watch = AnswerWatch(self._identity, facts, parts.bench, parts.judge, parts.first_tokens, batch)
        if kind == b"application/json":
            self._start, self._whole = {**message, "headers": headers}, []
            return
        self._inspector = Inspector(self._watch, parts.settings, parts.observer.unguarded)
        await self._send({**message, "headers": [each for each in headers if each[0] != b"content-length"]})

    async def _part(self, inspector: Inspector, message: Any) -> None:
        more = message.get("more_body", False)
        out = inspector.push(message.get("body", b""))
        self.is_stopped = inspector.is_over
        if not more and not self.is_stopped:
            out += inspector.end()
        if out or not more or self.is_stopped:
            await self._send({**message, "body": out, "more_body": more and not self.is_stopped})

    async def _gather(self, pieces: list[bytes], message: Any) -> None:
        pieces.append(message.get("body", b""))
        size = sum(map(len, pieces))
        if message.get("more_body", False):
            if size > self._parts.settings.max_answer_bytes:
                self._parts.observer.unguarded("too_large")
                self._whole = None
                await self._send(self._start)
                await self._send({**message, "body": b"".join(pieces)})
            return
        assert self._watch is not None
        answer = WholeAnswer(self._watch, self._parts.settings)
        body, status = await answer.read_or_pass(b"".join(pieces)), self._start["status"]
        if answer.refused is not None:
            body, status = answer.refused.body(), answer.refused.status
        headers = [each for each in self._start["headers"] if each[0] != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        if self._parts.settings.annotate != "off" and (found := actions.findings_header(self._watch.notes)):
            headers.append(found)
        await self._send({**self._start, "status": status, "headers": headers})
        await self._send({**message, "body": body})
