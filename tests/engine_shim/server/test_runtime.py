"""The engine's thread and the event loop's side of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from checkengine.engine_shim.engine.observer import NoObserver, RequestEnd, RequestStart
from checkengine.engine_shim.engine.request import GenerationRequest, Output, SamplingParameters
from checkengine.engine_shim.engine.runtime import EngineRuntime, NotAcceptingError, RequestRefusedError
from checkengine.engine_shim.engine.server import Service, build_app


def request(name: str = "a", tokens: int = 3) -> GenerationRequest:
    return GenerationRequest(name, [1, 2], SamplingParameters(max_tokens=tokens), arrived=1.0)


@pytest.fixture
def runtime(engine: Any) -> Iterator[EngineRuntime]:
    runtime = EngineRuntime(engine)
    runtime.start()
    assert runtime.wait_ready(20)
    yield runtime
    engine.may_step.set()
    runtime.stop()


async def collect(runtime: EngineRuntime, *requests: GenerationRequest) -> list[Output]:
    return [output async for output in await runtime.open(requests)]


def test_outputs_come_in_order_and_end_with_the_request(runtime: EngineRuntime) -> None:
    outputs = asyncio.run(collect(runtime, request()))
    assert [output.text for output in outputs] == ["w0 ", "w1 ", "w2 "]
    assert [output.finish for output in outputs] == [None, None, "length"]
    assert runtime.requests == 0


def test_a_group_ends_when_its_last_request_ends(runtime: EngineRuntime) -> None:
    outputs = asyncio.run(collect(runtime, request("a", 1), request("b", 4)))
    assert [output.name for output in outputs] == ["a", "b", "b", "b", "b"]


def test_closing_a_generation_cancels_what_has_not_finished(runtime: EngineRuntime, engine: Any) -> None:
    async def scenario() -> None:
        generation = await runtime.open([request("a", 1), request("b", 10_000)])
        async for output in generation:
            if output.name == "a":
                break
        generation.close()
        generation.close()

    asyncio.run(scenario())
    assert engine.wait_for(lambda: engine.cancelled == ["b"])


def test_a_refused_request_takes_its_group_back(runtime: EngineRuntime, engine: Any) -> None:
    inner = engine.submit

    def submit(request: GenerationRequest) -> None:
        if request.name == "b":
            raise ValueError("b can never run")
        inner(request)

    engine.submit = submit
    engine.may_step.clear()
    with pytest.raises(RequestRefusedError, match="b can never run"):
        asyncio.run(runtime.open([request("a", 9), request("b")]))
    engine.may_step.set()
    assert engine.wait_for(lambda: engine.cancelled == ["a"])


def test_a_name_in_use_is_refused(runtime: EngineRuntime, engine: Any) -> None:
    engine.may_step.clear()

    async def scenario() -> None:
        first = await runtime.open([request("a")])
        with pytest.raises(RequestRefusedError, match="named a"):
            await runtime.open([request("a")])
        first.close()

    asyncio.run(scenario())


def test_drain_waits_for_running_requests_and_refuses_new_ones(runtime: EngineRuntime, engine: Any) -> None:
    engine.may_step.clear()

    async def scenario() -> bool:
        generation = await runtime.open([request("a")])
        drained = asyncio.ensure_future(runtime.drain(20))
        while not runtime.draining:
            await asyncio.sleep(0)
        with pytest.raises(NotAcceptingError, match="shutting down"):
            await runtime.open([request("b")])
        assert not drained.done()
        engine.may_step.set()
        assert len([output async for output in generation]) == 3
        return await drained

    assert asyncio.run(scenario())


def test_drain_gives_up_in_time_and_stop_cuts_off_what_is_left(runtime: EngineRuntime, engine: Any) -> None:
    endless = request("a", 10**9)

    async def scenario() -> None:
        generation = await runtime.open([endless])
        assert not await runtime.drain(0.05)
        runtime.stop()
        with pytest.raises(NotAcceptingError, match="stopped"):
            async for _ in generation:
                pass

    asyncio.run(scenario())


def test_the_server_is_ready_only_after_its_warm_up(engine: Any, service: Service) -> None:
    warm = threading.Event()

    def warm_up() -> None:
        assert warm.wait(20)

    service.runtime = EngineRuntime(engine, warm_up=warm_up)
    with TestClient(build_app(service)) as client:
        assert client.get("/healthz").status_code == 503
        assert client.get("/healthz/ready").json() == {"status": "starting"}
        assert client.get("/healthz/live").status_code == 200
        warm.set()
        assert service.runtime.wait_ready(20)
        assert client.get("/healthz").json() == {"status": "ready"}


def test_a_warm_up_that_fails_makes_the_server_not_live(engine: Any, service: Service) -> None:
    def fail() -> None:
        raise RuntimeError("planted: no compiler")

    service.runtime = EngineRuntime(engine, warm_up=fail)
    with TestClient(build_app(service)) as client:
        assert not service.runtime.wait_ready(20)
        assert client.get("/healthz/live").json() == {"status": "failed"}


class Recording(NoObserver):
    def __init__(self) -> None:
        self.starts: list[RequestStart] = []
        self.tokens: list[tuple[str, int, float, bool]] = []
        self.ends: list[RequestEnd] = []

    def started(self, start: RequestStart) -> None:
        self.starts.append(start)

    def produced(self, sequence: str, tokens: int, seconds: float, first: bool) -> None:
        self.tokens.append((sequence, tokens, seconds, first))

    def ended(self, end: RequestEnd) -> None:
        self.ends.append(end)


def test_the_observer_learns_the_time_to_the_first_token_and_between_tokens(engine: Any) -> None:
    times = iter([10.0, 10.5, 12.0])
    observer = Recording()
    runtime = EngineRuntime(engine, observer=observer, clock=lambda: next(times))
    runtime.start()
    asyncio.run(collect(runtime, request("a", 3)))
    runtime.stop()
    assert observer.tokens == [("a", 1, 9.0, True), ("a", 1, 0.5, False), ("a", 1, 1.5, False)]


def test_the_observer_is_told_of_each_request_once_and_of_no_content(engine: Any, service: Service) -> None:
    observer = Recording()
    service.runtime = EngineRuntime(engine, observer=observer)
    body = {"model": "scripted", "messages": [{"role": "user", "content": "secret"}], "max_tokens": 2, "n": 2}
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with TestClient(build_app(service)) as client:
        for stream in (False, True):
            client.post("/v1/chat/completions", json={**body, "stream": stream, "stop": "secret"}, headers=headers)
    assert [(start.operation, start.stream, len(start.sequences)) for start in observer.starts] == [
        ("chat", False, 2),
        ("chat", True, 2),
    ]
    assert observer.starts[0].traceparent == headers
    assert [(end.finish_reasons, end.output_tokens, end.error) for end in observer.ends] == [
        (("length", "length"), 4, None)
    ] * 2
    assert all(end.ttft_seconds is not None for end in observer.ends)
    assert "secret" not in f"{observer.starts}{observer.ends}"


def test_an_observer_that_raises_harms_nobody(engine: Any, service: Service) -> None:
    class Broken(NoObserver):
        def started(self, start: RequestStart) -> None:
            raise RuntimeError("planted")

        def produced(self, sequence: str, tokens: int, seconds: float, first: bool) -> None:
            raise RuntimeError("planted")

        def ended(self, end: RequestEnd) -> None:
            raise RuntimeError("planted")

    service.runtime = EngineRuntime(engine, observer=Broken())
    body = {"model": "scripted", "prompt": "a", "max_tokens": 2}
    with TestClient(build_app(service)) as client:
        for _ in range(2):
            assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "w0 w1 "
