"""One HTTP request: run it, answer whole or as a stream, and tell the observer how it went."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from checkengine.engine_shim.engine.observer import RequestObserver, RequestStart
from checkengine.engine_shim.engine.runtime import EngineRuntime, Generation
from checkengine.engine_shim.engine.server_answers import Answer
from checkengine.engine_shim.engine.server_errors import api_error
from checkengine.engine_shim.engine.server_sessions import Turn

log = logging.getLogger("checkengine.server")
CLIENT_CLOSED = 499
"""nginx's status for a client that left; nobody reads it."""


class Run:
    """Owns the engine's work for one HTTP request from start to its one `finish`."""

    def __init__(
        self, answer: Answer, observer: RequestObserver, generation: Generation, turn: Turn | None = None
    ) -> None:
        self.answer = answer
        self._turn = turn
        self._observer, self._generation = observer, generation
        self._arrived = answer.requests[0].arrived
        self._ttft: float | None = None
        self._finished = False

    def finish(self, error: str | None = None) -> None:
        """Free what the engine still holds. The first call counts."""
        if self._finished:
            return
        self._finished = True
        self._generation.close()
        observe(self._observer.ended, self.answer.end(self._ttft, error))

    async def outputs(self) -> AsyncIterator[tuple[Any, str]]:
        """(choice, new text) for each output."""
        async for output in self._generation:
            if output.tokens and self._ttft is None:
                self._ttft = time.monotonic() - self._arrived
            if self._turn is not None:
                self._turn.hear(output)
            yield self.answer.take(output), output.text
        self.finish()

    async def whole(self, request: Request) -> Response:
        """The whole answer; a client that leaves cancels it."""
        work = asyncio.ensure_future(self._collect())
        leaving = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.finish("cancelled")
                return Response(status_code=CLIENT_CLOSED)
            work.result()
            return JSONResponse(self.answer.body())
        except Exception:
            self.finish("engine")
            raise
        finally:
            self.finish("cancelled")
            for task in (work, leaving):
                task.cancel()

    async def _collect(self) -> None:
        async for _ in self.outputs():
            pass

    async def events(self, wants_usage: bool) -> AsyncIterator[str]:
        """Server-sent events."""
        if self.answer.kind == "chat":
            for choice in self.answer.choices.values():
                yield event(self.answer.role_chunk(choice))
        try:
            async for choice, text in self.outputs():
                if text or choice.finish:
                    yield event(self.answer.chunk(choice, text))
        except Exception as error:
            # The status line is sent: the error can only be another event.
            self.finish("engine")
            yield event(api_error(error).body)
            return
        if wants_usage:
            yield event(self.answer.usage_chunk())
        yield "data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """Ends the run whatever ends the response: even a client that left before the first byte was asked for."""

    def __init__(self, run: Run, wants_usage: bool) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(run.events(wants_usage), media_type="text/event-stream", headers=headers)
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._run.finish("cancelled")


async def start_run(
    runtime: EngineRuntime, observer: RequestObserver, start: RequestStart, answer: Answer, turn: Turn | None = None
) -> Run:
    """Raises what `EngineRuntime.open` raises, after telling the observer."""
    observe(observer.started, start)
    try:
        generation = await runtime.open(answer.requests)
    except Exception:
        observe(observer.ended, answer.end(None, "refused"))
        raise
    return Run(answer, observer, generation, turn)


def observe(tell: Callable[[Any], None], what: Any) -> None:
    """An observer that raises is a fault of ours and none of the client's."""
    try:
        tell(what)
    except Exception:
        log.exception("the request observer raised")


def event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
