"""The server on a real socket: clients that leave, drain, and OpenAI's own client."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import threading
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import Request

from checkengine.engine_shim.draining import DrainingServer
from checkengine.engine_shim.engine.request import IncidentNote
from checkengine.engine_shim.engine.server import Service, build_app
from checkengine.engine_shim.engine.server_process import serve_until_signal
from checkengine.engine_shim.settings import ServerSettings
from checkengine.guards.errors import UserError

GOOD = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}


def test_openais_client_gets_a_whole_answer(server: DrainingServer) -> None:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(**GOOD)
        assert answer.choices[0].message.content == "w0 w1 w2 w3 w4 w5 w6 w7 w8 "
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.prompt_tokens_details.cached_tokens == 4
        assert [model.id for model in client.models.list()] == ["scripted"]
        text = client.completions.create(model="scripted", prompt="a", max_tokens=2)
        assert text.choices[0].text == "w0 w1 "


def test_what_is_loaded_when_a_server_begins_is_passed_over_by_garbage_collections(server: DrainingServer) -> None:
    assert gc.get_freeze_count() > len(gc.get_objects())


def test_what_was_loaded_outlives_no_server(server: DrainingServer) -> None:
    server.should_exit = True
    assert server.ended.wait(20)
    assert gc.get_freeze_count() == 0


def test_openais_client_gets_a_stream(server: DrainingServer) -> None:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        chunks = list(client.chat.completions.create(**GOOD, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in chunks if part.choices).endswith("w7 w8 ")
    assert chunks[-1].usage.completion_tokens == 9


def test_openais_client_sees_the_incident_of_a_guard_stop(server: DrainingServer, engine: Any) -> None:
    engine.stop_at = (1, IncidentNote("repetition.loop", "inc-7"))
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(**GOOD)
    assert answer.choices[0].finish_reason == "content_filter"
    assert answer.model_extra["checkengine"] == {"kind": "repetition.loop", "incident": "inc-7"}


def test_openais_client_raises_its_own_errors(server: DrainingServer) -> None:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(**{**GOOD, "model": "other"})
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{**GOOD, "max_tokens": 600})
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_request(
    server: DrainingServer, engine: Any, service: Service, stream: bool
) -> None:
    service.context_length = 10**9
    engine.may_step.clear()
    body = json.dumps({**GOOD, "n": 2, "stream": stream, "max_tokens": 10**8}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    with socket.create_connection((server.config.host, int(server.address.rpartition(":")[2]))) as client:
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        assert engine.wait_for(lambda: len(engine.live) == 2)
    engine.may_step.set()
    assert engine.wait_for(lambda: len(engine.cancelled) == 2)
    assert not engine.live


def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_its_request(
    server: DrainingServer, engine: Any, service: Service
) -> None:
    service.context_length = 10**9
    body = {**GOOD, "stream": True, "max_tokens": 10**8}
    step = Steps(engine)
    with httpx.Client() as client, client.stream("POST", f"{server.address}/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        step.allow(2)
        assert any("w1" in line for line in lines)
    step.allow_all()
    assert engine.wait_for(lambda: len(engine.cancelled) == 1)


class Steps:
    """Lets a scripted engine take so many steps and no more."""

    def __init__(self, engine: Any) -> None:
        self._free = threading.Semaphore(0)
        self._open = threading.Event()
        inner = engine.step

        def step() -> Any:
            if not self._open.is_set():
                self._free.acquire()
            return inner()

        engine.step = step

    def allow(self, count: int) -> None:
        self._free.release(count)

    def allow_all(self) -> None:
        """Also lets the step go on that waits already."""
        self._open.set()
        self._free.release()


def test_a_stream_whose_client_left_before_its_first_byte_is_freed(service: Service, engine: Any) -> None:
    """The response ends without ever asking its generator for anything."""
    app = build_app(service)
    engine.may_step.clear()

    async def scenario() -> None:
        async with app.router.lifespan_context(app):
            body = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"stream":true}'
            messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]

            async def receive() -> Any:
                return messages.pop(0)

            async def send(message: Any) -> None:
                raise AssertionError(f"the client is gone, nobody reads {message}")

            scope = {
                "type": "http",
                "asgi": {"spec_version": "2.3"},
                "http_version": "1.1",
                "method": "POST",
                "path": "/v1/chat/completions",
                "raw_path": b"/v1/chat/completions",
                "query_string": b"",
                "headers": [(b"content-type", b"application/json")],
                "client": ("127.0.0.1", 1),
                "server": ("127.0.0.1", 2),
                "scheme": "http",
                "root_path": "",
            }
            assert Request(scope).method == "POST"
            with pytest.raises((AssertionError, BaseExceptionGroup)):
                await app(scope, receive, send)
            engine.may_step.set()
            assert await asyncio.to_thread(engine.wait_for, lambda: len(engine.cancelled) == 1)

    asyncio.run(scenario())


def test_sigterm_lets_running_requests_finish_refuses_new_ones_and_ends(server: DrainingServer, engine: Any) -> None:
    engine.may_step.clear()
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(f"{server.address}/v1/chat/completions", json=GOOD, timeout=30))

    running = threading.Thread(target=ask)
    running.start()
    assert engine.wait_for(lambda: len(engine.live) == 1)
    server.handle_exit(signal.SIGTERM, None)
    refused = httpx.post(f"{server.address}/v1/chat/completions", json=GOOD)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "not_accepting"
    assert refused.headers["retry-after"] == "1"
    assert httpx.get(f"{server.address}/healthz/ready").json() == {"status": "draining"}
    assert httpx.get(f"{server.address}/healthz/live").status_code == 200
    engine.may_step.set()
    running.join(20)
    assert answers[0].json()["choices"][0]["finish_reason"] == "length"
    assert server.ended.wait(20)
    assert server.should_exit


def test_a_port_in_use_is_one_clear_error(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = ServerSettings(port=taken.getsockname()[1])
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1"):
            serve_until_signal(build_app(service), service.runtime, settings, announce=lambda address: None)
    assert not service.runtime.alive
