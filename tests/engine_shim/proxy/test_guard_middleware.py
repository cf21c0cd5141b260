"""The guards inside an ASGI app."""

from __future__ import annotations

import asyncio
import atexit
import json
from types import SimpleNamespace

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from checkengine.config import Settings
from checkengine.engine_shim.proxy.middleware import GuardedApp
from checkengine.middleware import GuardMiddleware

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Tell me of fruit, please."}]}
LINE = "I like apples and pears and plums very much indeed. "


def app_of(say, pieces, state):
    app = FastAPI()

    async def events():
        try:
            for piece in pieces:
                yield say.chunk(piece)
                state.sent += 1
                await asyncio.sleep(0)
            yield say.chunk("", "stop") + say.done
        finally:
            state.ended = True

    @app.post("/v1/chat/completions")
    async def chat(request: Request):
        if (await request.json()).get("stream"):
            return StreamingResponse(events(), media_type="text/event-stream")
        return Response(say.body("".join(pieces)), media_type="application/json")

    @app.get("/health")
    async def health():
        return JSONResponse({"ok": True})

    return app


def settings(**guards):
    return Settings.model_validate({"guards": guards, "spool": {"enabled": False}})


@pytest.fixture
def state():
    return SimpleNamespace(sent=0, ended=False)


def test_one_line_puts_real_guards_into_an_app(say, state):
    app = app_of(say, [LINE] * 400, state)
    app.add_middleware(GuardMiddleware, config=settings(repetition={"action": "stop"}), registry=CollectorRegistry())
    with TestClient(app) as client:
        assert client.get("/health").json() == {"ok": True}
        reply = client.post("/v1/chat/completions", json=CHAT | {"stream": True})
        last = json.loads(reply.text.rstrip().split("\n\n")[-2][6:])
        assert reply.text.endswith("data: [DONE]\n\n")
        assert last["choices"][0]["finish_reason"] == "content_filter"
        assert last["checkengine"]["kind"] == "repetition.loop"
        assert state.ended
        assert state.sent < 400
        whole = client.post("/v1/chat/completions", json=CHAT)
        assert whole.json()["choices"][0]["finish_reason"] == "content_filter"
        assert whole.headers["x-checkengine-findings"].startswith("repetition.loop")


def test_what_no_guard_stops_passes_byte_for_byte(rig, story, say, state):
    pieces = ["One ", "apple ", "a ", "day ", "keeps ", "the ", "doctor ", "away."]

    async def told():
        async with rig(say.whole(b"{}")) as proxy:
            app = app_of(say, pieces, state)
            with TestClient(app) as bare, TestClient(GuardedApp(app, proxy.parts)) as guarded:
                for body in (CHAT, CHAT | {"stream": True}):
                    plain, seen = (each.post("/v1/chat/completions", json=body) for each in (bare, guarded))
                    assert seen.content == plain.content
                assert guarded.get("/health").content == b'{"ok":true}'

    story(told())


def test_an_app_whose_answer_was_stopped_is_told_that_its_client_left(rig, story, say):
    heard = []

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(20):
            try:
                await send({"type": "http.response.body", "body": say.chunk("LOOP"), "more_body": True})
            except OSError:
                heard.append((await receive())["type"])
                raise

    async def told():
        async with rig(say.whole(b"{}"), guards={"repetition": {"action": "stop"}}) as proxy:
            sent = []

            async def receive():
                return {"type": "http.request", "body": json.dumps(CHAT).encode(), "more_body": False}

            async def send(message):
                sent.append(message)

            scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
            await GuardedApp(app, proxy.parts)(scope, receive, send)
            assert heard == ["http.disconnect"]
            assert sent[-1]["more_body"] is False
            assert sent[-1]["body"].endswith(b"data: [DONE]\n\n")

    story(told())


def test_middleware_that_nobody_closes_is_closed_at_the_end_of_python(monkeypatch):
    waiting = []
    monkeypatch.setattr(atexit, "register", waiting.append)
    monkeypatch.setattr(atexit, "unregister", waiting.remove)
    settings = Settings.model_validate({"spool": {"enabled": False}})
    middleware = GuardMiddleware(FastAPI(), settings, CollectorRegistry())
    assert middleware.close in waiting
    middleware.close()
    assert middleware.close not in waiting
