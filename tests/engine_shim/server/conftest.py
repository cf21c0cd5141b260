"""A server over an engine that follows a script, so that each test decides what happens when."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from checkengine.engine_shim.draining import DrainingServer
from checkengine.engine_shim.engine.request import GenerationRequest, IncidentNote, Output
from checkengine.engine_shim.engine.runtime import EngineRuntime
from checkengine.engine_shim.engine.server import Service, build_app
from checkengine.engine_shim.engine.server_process import draining_server
from checkengine.engine_shim.settings import ServerSettings

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' and loop.first %}{{ raise_exception('no tool first') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
)


def byte_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a byte, without merges: real, and small enough to be made on the spot."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.chat_template = template
    return tokenizer


class ScriptedEngine:
    """Says `w0 w1 w2 …`, a word a step, until max_tokens; the test may stop, fail or hold it."""

    max_length = 64

    def __init__(self) -> None:
        self.live: dict[str, tuple[GenerationRequest, int]] = {}
        self.seen: list[GenerationRequest] = []
        self.cancelled: list[str] = []
        self.may_step = threading.Event()
        self.may_step.set()
        self.changed = threading.Condition()
        self.stop_at: tuple[int, IncidentNote] | None = None
        self.fail_at: int | None = None
        self.refuse: str | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.live)

    def submit(self, request: GenerationRequest) -> None:
        if self.refuse:
            raise ValueError(self.refuse)
        self._note(lambda: self.live.__setitem__(request.name, (request, 0)))
        self.seen.append(request)

    def cancel(self, name: str) -> None:
        if self.live.pop(name, None):
            self._note(lambda: self.cancelled.append(name))

    def step(self) -> list[Output]:
        self.may_step.wait()
        return [output for name in list(self.live) for output in [self._advance(name)]]

    def _advance(self, name: str) -> Output:
        request, done = self.live[name]
        if done == self.fail_at:
            raise RuntimeError("planted: the engine fails")
        if self.stop_at and done == self.stop_at[0]:
            del self.live[name]
            return Output(name, (), "", "content_filter", self.stop_at[1])
        self.live[name] = (request, done + 1)
        finish = "length" if done + 1 >= request.sampling.max_tokens else None
        if finish:
            del self.live[name]
        return Output(name, (done,), f"w{done} ", finish, cached_tokens=min(4, len(request.prompt_tokens)))

    def _note(self, change: Callable[[], Any]) -> None:
        with self.changed:
            change()
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 20.0) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, timeout)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def settings() -> ServerSettings:
    return ServerSettings(port=0, max_requests=8, max_body_bytes=4096)


@pytest.fixture
def service(engine: ScriptedEngine, settings: ServerSettings) -> Service:
    return Service(EngineRuntime(engine), byte_tokenizer(), "scripted", engine.max_length, settings)


@pytest.fixture
def client(service: Service, engine: ScriptedEngine) -> Iterator[TestClient]:
    with TestClient(build_app(service), raise_server_exceptions=False) as client:
        assert service.runtime.wait_ready(20)
        yield client
        engine.may_step.set()


@contextmanager
def listening(service: Service, **parts: Any) -> Iterator[DrainingServer]:
    """The server on a real socket, in a thread; signals are given by calling `handle_exit`."""
    up = threading.Event()
    app = build_app(service, **parts)
    server = draining_server(app, service.runtime, service.settings, lambda address: up.set())
    server.ended = threading.Event()

    def run() -> None:
        server.run()
        server.ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert up.wait(20)
        yield server
    finally:
        server.should_exit = True
        thread.join(20)
        gc.unfreeze()
        assert not thread.is_alive()


@pytest.fixture
def server(service: Service, engine: ScriptedEngine) -> Iterator[DrainingServer]:
    with listening(service) as server:
        yield server
        engine.may_step.set()
