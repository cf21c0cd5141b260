"""A proxy between a scripted upstream and raw clients, all on one event loop: each test decides what happens when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from checkengine.engine_shim.draining import DrainingServer
from checkengine.engine_shim.proxy.app import ProxyApp
from checkengine.engine_shim.proxy.guarding import Bench, GuardMakers
from checkengine.engine_shim.proxy.judging import Judge
from checkengine.engine_shim.proxy.pace import FirstTokens
from checkengine.engine_shim.proxy.parts import ExchangeEnd, ExchangeStart, ProxyParts
from checkengine.engine_shim.proxy.server import bound, proxy_server
from checkengine.engine_shim.proxy.sessions import Sessions
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.upstream import OneUpstream, Outcome, RoutedRequest, Upstream
from checkengine.guards import BrakeSettings, EventBus, GuardsSettings, IncidentBook, Policy, Severity
from checkengine.guards.text import TextFinding, TextStart
from checkengine.guards.text_logprobs import LogprobsGuard
from checkengine.guards.text_tool_calls import TextToolCallGuard
from checkengine.guards.tool_loops import ToolLoopGuard

LONGEST = 30.0


@dataclass
class Seen:
    """One request as the upstream got it."""

    head: bytes
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """The proxy closed the connection."""
    gone_at: float = 0.0

    @property
    def target(self) -> bytes:
        return self.head.split(b" ")[1]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:-2]
        return [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


Answer = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


class ScriptedUpstream:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self.changed = asyncio.Condition()
        self.connections: set[asyncio.Task[None] | None] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*[task for task in self.connections if task], return_exceptions=True)

    async def request(self, number: int = 0) -> Seen:
        """Waits until it has come."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.seen) > number)
        return self.seen[number]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self.connections.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                seen = Seen(head, await self._body(reader, head))
                await self._note(seen)
                await self._answer(seen, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections.discard(task)
            writer.close()

    async def _note(self, seen: Seen) -> None:
        async with self.changed:
            self.seen.append(seen)
            self.changed.notify_all()

    async def _answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        working = asyncio.ensure_future(self.answer(seen, writer))
        leaving = asyncio.ensure_future(self._gone(seen, reader))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ConnectionError
            working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _gone(self, seen: Seen, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            await reader.read(1)
        seen.gone_at = asyncio.get_running_loop().time()
        seen.gone.set()

    async def _body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return await reader.readexactly(int(line.split(b":")[1]))
        return b""


@dataclass
class Reply:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    whole: bool
    """The body ended as HTTP says that it must."""

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """One connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def send(self, body: object, path: str = "/v1/chat/completions", headers: Iterable[str] = ()) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: proxy", "Content-Type: application/json", *headers]
        self.writer.write("\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data)
        await self.writer.drain()

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        found = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:-2])]
        return int(lines[0].split(b" ")[1]), found

    async def part(self) -> bytes:
        """One part of a chunked body; empty at its end."""
        size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def reply(self) -> Reply:
        status, headers = await self.head()
        named = dict(headers)
        body, whole = b"", True
        try:
            if named.get(b"transfer-encoding") == b"chunked":
                while part := await self.part():
                    body += part
            else:
                body = await self.reader.readexactly(int(named.get(b"content-length", b"0")))
        except (asyncio.IncompleteReadError, ConnectionError):
            whole = False
        return Reply(status, headers, body, whole)

    async def ask(self, body: object, path: str = "/v1/chat/completions", headers: Iterable[str] = ()) -> Reply:
        await self.send(body, path, headers)
        return await self.reply()

    def leave(self) -> None:
        self.writer.transport.abort()


class WordGuard:
    """Finds a word: an ERROR named `kind` where it ends; crashes on `CRASH`."""

    version = 1

    def __init__(self, start: TextStart, name: str, word: str, kind: str) -> None:
        self._id, self.name, self._word, self._kind = start.id, name, word, kind
        self._text, self._told = "", False

    def push(self, piece: str) -> list[TextFinding]:
        self._text += piece
        if "CRASH" in self._text:
            raise RuntimeError("planted")
        place = self._text.find(self._word)
        if place < 0 or self._told:
            return []
        self._told = True
        return [TextFinding(self._kind, self._id, Severity.ERROR, self.name, {"char": place})]

    def end(self) -> list[TextFinding]:
        return []


def word_makers() -> GuardMakers:
    return GuardMakers(
        {
            "repetition": lambda start: WordGuard(start, "repetition", "LOOP", "repetition.loop"),
            "salad": lambda start: WordGuard(start, "salad", "SALAD", "text.salad"),
            "tool_calls": TextToolCallGuard,
        },
        {"uniform": lambda start: LogprobsGuard(start, GuardsSettings().uniform)},
        {"tool_calls": ToolLoopGuard},
    )


class Recording:
    """An observer."""

    def __init__(self) -> None:
        self.starts: list[ExchangeStart] = []
        self.ends: list[ExchangeEnd] = []
        self.waits: list[float] = []
        self.passed: list[str] = []

    def started(self, start: ExchangeStart) -> None:
        self.starts.append(start)

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def ended(self, end: ExchangeEnd) -> None:
        self.ends.append(end)

    def unguarded(self, reason: str) -> None:
        self.passed.append(reason)


class RecordingRouter(OneUpstream):
    def __init__(self, upstream: Upstream) -> None:
        super().__init__(upstream)
        self.requests: list[RoutedRequest] = []
        self.outcomes: list[tuple[str, Outcome]] = []

    def finished(self, upstream: Upstream, request: RoutedRequest, outcome: Outcome) -> None:
        super().finished(upstream, request, outcome)
        self.requests.append(request)
        self.outcomes.append((upstream.name, outcome))


@dataclass
class Rig:
    upstream: ScriptedUpstream
    proxy: DrainingServer
    parts: ProxyParts
    observer: Recording
    router: Any
    events: list[Any]
    opened: list[RawClient] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.proxy.servers[0].sockets[0].getsockname()[1])

    async def client(self) -> RawClient:
        self.opened.append(await RawClient.open(self.port))
        return self.opened[-1]

    async def ask(self, body: object, path: str = "/v1/chat/completions", headers: Iterable[str] = ()) -> Reply:
        return await (await self.client()).ask(body, path, headers)

    async def quiet(self) -> None:
        """Waits until no request runs."""
        while self.parts.running:
            await asyncio.sleep(0)


def parts_of(router: Any, observer: Recording, events: list[Any], options: Mapping[str, Any]) -> ProxyParts:
    guards = GuardsSettings.model_validate(options.get("guards", {}))
    bus = SimpleNamespace(publish=events.append)
    policy = Policy(guards, BrakeSettings(minimum_stopped=10_000), IncidentBook(), publish=bus.publish)
    settings = ProxySettings.model_validate({"port": 0, "batch_chunks": 4, **options.get("proxy", {})})
    bench = Bench(options.get("makers", word_makers()), guards) if options.get("guarded", True) else None
    return ProxyParts(
        settings,
        router,
        bench,
        Judge(policy, bus.publish),
        FirstTokens(guards.latency),
        Sessions(settings.session_header, settings.sessions),
        observer,
    )


@asynccontextmanager
async def rig_of(answer: Answer, **options: Any) -> AsyncIterator[Rig]:
    """`proxy`, `guards`: settings; `makers`: of guards; `upstreams`: further answers; `router`: from all of them."""
    upstream = ScriptedUpstream(answer)
    others = [ScriptedUpstream(each) for each in options.get("upstreams", ())]
    places = [Upstream.of(await each.start()) for each in (upstream, *others)]
    router = options.get("router", lambda found: RecordingRouter(found[0]))(places)
    observer, events = Recording(), []
    parts = parts_of(router, observer, events, options)
    server = proxy_server(ProxyApp(parts))
    serving = asyncio.ensure_future(server.serve([bound("127.0.0.1", 0)]))
    while not server.started:
        await asyncio.sleep(0)
    rig = Rig(upstream, server, parts, observer, router, events)
    try:
        yield rig
    finally:
        for client in rig.opened:
            client.leave()
        server.should_exit = True
        await serving
        for each in (upstream, *others):
            await each.stop()
    assert parts.running == 0
    assert len(parts.deadlines) == 0


def run_story(story: Coroutine[Any, Any, None]) -> None:
    """On a loop of its own; no task may be left in the end."""

    async def whole() -> None:
        await asyncio.wait_for(story, LONGEST)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait(left, timeout=2.0) if left else None
        assert not [task for task in left if not task.done()]

    # As the proxy runs: uvloop differs from asyncio's own loop here and there.
    uvloop.run(whole())


@pytest.fixture
def rig() -> Callable[..., Any]:
    return rig_of


@pytest.fixture
def story() -> Callable[[Coroutine[Any, Any, None]], None]:
    return run_story


def chat_chunk(text: str = "", finish: str | None = None, **more: Any) -> bytes:
    index = more.pop("index", 0)
    delta = more.pop("delta", {"content": text} if text else {})
    choice = {"index": index, "delta": delta, "logprobs": more.pop("logprobs", None), "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body | more, ensure_ascii=False).encode() + b"\n\n"


def chat_body(text: str, finish: str = "stop", **more: Any) -> bytes:
    message = {"role": "assistant", "content": text} | more.pop("message", {})
    choice = {"index": 0, "message": message, "finish_reason": finish} | more.pop("choice", {})
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m", "choices": [choice]}
    return json.dumps(body | more).encode()


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json", headers: str = "") -> Answer:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


EVENTS_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def put(writer: asyncio.StreamWriter, data: bytes) -> None:
    """A part of a chunked body."""
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


def events(*parts: bytes) -> Answer:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS_HEAD)
        for part in parts:
            await put(writer, part)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return answer


@pytest.fixture
def say() -> SimpleNamespace:
    """What upstreams answer."""
    return SimpleNamespace(
        chunk=chat_chunk,
        body=chat_body,
        whole=whole,
        events=events,
        put=put,
        head=EVENTS_HEAD,
        done=b"data: [DONE]\n\n",
    )


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def chat() -> dict[str, Any]:
    return dict(CHAT)
