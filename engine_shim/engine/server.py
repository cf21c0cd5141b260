"""The OpenAI-compatible server over the embedded engine: the app and its addresses."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from checkengine.engine_shim.engine.observer import RequestStart
from checkengine.engine_shim.engine.request import GenerationRequest
from checkengine.engine_shim.engine.runtime import EngineRuntime
from checkengine.engine_shim.engine.server_answers import Answer, Kind
from checkengine.engine_shim.engine.server_control import Controller, control_router
from checkengine.engine_shim.engine.server_errors import ApiError, BodyLimit, install_error_handlers
from checkengine.engine_shim.engine.server_generate import EventStream, start_run
from checkengine.engine_shim.engine.server_prompt import chat_tokens, completion_tokens, require_room
from checkengine.engine_shim.engine.server_requests import (
    ChatBody,
    CompletionBody,
    SamplingBody,
    choice_sampling,
    trace_headers,
)
from checkengine.engine_shim.engine.server_sessions import HEADER, Conversations, add_sessions
from checkengine.engine_shim.settings import ServerSettings

Metrics = Callable[[str], tuple[bytes, str]]
"""From an Accept header to an exposition and its content type."""
COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens for /v1/completions; chat goes on to the end of the context."""


@dataclass(slots=True)
class Service:
    """What the addresses share."""

    runtime: EngineRuntime
    tokenizer: Any
    model_name: str
    context_length: int
    """Tokens of prompt and output together."""
    settings: ServerSettings
    aliases: Sequence[str] = ()
    """Other names of the model that requests may use, for example its path."""
    conversations: Conversations = field(default_factory=lambda: Conversations(None))
    started: int = field(default_factory=lambda: int(time.time()))

    async def chat(self, request: Request, body: ChatBody) -> Response:
        self.require_model(body.model)
        began = time.perf_counter()
        tokens = chat_tokens(self.tokenizer, body)
        return await self._generate(request, body, "chat", [tokens], time.perf_counter() - began)

    async def complete(self, request: Request, body: CompletionBody) -> Response:
        self.require_model(body.model)
        vocabulary = len(self.tokenizer)
        began = time.perf_counter()
        prompts = [completion_tokens(self.tokenizer, prompt, vocabulary) for prompt in body.prompts]
        return await self._generate(request, body, "completion", prompts, time.perf_counter() - began)

    def models(self) -> list[dict[str, Any]]:
        return [
            {
                "id": self.model_name,
                "object": "model",
                "created": self.started,
                "owned_by": "checkengine",
                "max_model_len": self.context_length,
            }
        ]

    def require_model(self, name: str) -> None:
        if name != self.model_name and name not in self.aliases:
            raise ApiError(
                f"The model `{name}` does not exist here; this server has `{self.model_name}`",
                status=404,
                param="model",
                code="model_not_found",
            )

    async def _generate(
        self, request: Request, body: SamplingBody, kind: Kind, prompts: list[list[int]], tokenise_seconds: float
    ) -> Response:
        self._require_capacity(body, prompts)
        identity = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{uuid.uuid4().hex}"
        requests = self._engine_requests(body, kind, identity, prompts)
        reason = self.settings.finish_reason
        answer = Answer(kind, identity, self.model_name, reason, requests, len(prompts))
        start = RequestStart(
            request=identity,
            sequences=tuple(each.name for each in requests),
            operation="chat" if kind == "chat" else "text_completion",
            model=self.model_name,
            stream=bool(body.stream),
            sampling=requests[0].sampling.model_dump(exclude={"stop", "stop_token_ids"}),
            traceparent=trace_headers(request.headers),
            tokenise_seconds=tokenise_seconds,
        )
        turn = self.conversations.opened(request.headers.get(HEADER), requests)
        run = await start_run(self.runtime, self.runtime.observer, start, answer, turn)
        return EventStream(run, body.wants_usage) if body.stream else await run.whole(request)

    def _require_capacity(self, body: SamplingBody, prompts: Sequence[list[int]]) -> None:
        if body.choices > self.settings.max_choices:
            raise ApiError(f"n: at most {self.settings.max_choices}", param="n", code="invalid_value")
        wanted = body.choices * len(prompts)
        if wanted > self.settings.max_requests:
            most = f"at most {self.settings.max_requests} sequences in one request, not {wanted}"
            raise ApiError(most, param="prompt" if len(prompts) > 1 else "n", code="invalid_value")
        if self.runtime.requests + wanted > self.settings.max_requests:
            raise ApiError(
                f"{self.settings.max_requests} requests are running or waiting; try again later",
                status=429,
                kind="rate_limit_error",
                code="rate_limit_exceeded",
            )

    def _engine_requests(
        self, body: SamplingBody, kind: Kind, identity: str, prompts: Sequence[list[int]]
    ) -> list[GenerationRequest]:
        arrived = time.monotonic()
        requests: list[GenerationRequest] = []
        for tokens in prompts:
            room = require_room(
                tokens, body.output_limit, self.context_length, "messages" if kind == "chat" else "prompt"
            )
            first = body.sampling(room, room if kind == "chat" else COMPLETION_TOKENS)
            for choice in range(body.choices):
                name = f"{identity}-{len(requests)}"
                sampling = choice_sampling(first, choice)
                requests.append(GenerationRequest(name, list(tokens), sampling, body.language, arrived))
        return requests


def build_app(service: Service, *, metrics: Metrics | None = None, controller: Controller | None = None) -> FastAPI:
    """`service.runtime` is started with the app and stopped with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.runtime.start()
        yield
        service.runtime.stop()

    # Docs pages load scripts from a foreign server; the schema itself stays at /openapi.json.
    app = FastAPI(title="checkengine", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(BodyLimit, maximum=service.settings.max_body_bytes)
    install_error_handlers(app)
    _add_openai(app, service)
    add_sessions(app, service.conversations)
    _add_health(app, service.runtime)
    if metrics is not None:
        _add_metrics(app, metrics)
    if controller is not None:
        app.include_router(control_router(controller, service.settings))
    return app


def _add_openai(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    async def chat(request: Request, body: ChatBody) -> Response:
        return await service.chat(request, body)

    @app.post("/v1/completions")
    async def completions(request: Request, body: CompletionBody) -> Response:
        return await service.complete(request, body)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": service.models()}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.require_model(name)
        return service.models()[0]


def _add_health(app: FastAPI, runtime: EngineRuntime) -> None:
    """Live: restart me when this fails. Ready: send me traffic only while this holds."""

    def answer(ok: bool) -> JSONResponse:
        return JSONResponse({"status": _state(runtime)}, 200 if ok else 503)

    @app.get("/healthz/live")
    async def live() -> JSONResponse:
        return answer(runtime.alive)

    @app.get("/healthz")
    @app.get("/healthz/ready")
    async def ready() -> JSONResponse:
        return answer(runtime.ready)


def _state(runtime: EngineRuntime) -> str:
    if not runtime.alive:
        return "failed"
    if runtime.draining:
        return "draining"
    return "ready" if runtime.ready else "starting"


def _add_metrics(app: FastAPI, metrics: Metrics) -> None:
    # Not async: it runs in the thread pool, so that a slow scrape holds up no stream.
    @app.get("/metrics")
    def scrape(request: Request) -> Response:
        body, content_type = metrics(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})
