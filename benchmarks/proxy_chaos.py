"""Streams that no server ought to send, and clients that leave at any moment."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from pathlib import Path

from checkengine.benchmarks.proxy_load import HEADERS, PATH, Process, ask, body_of
from checkengine.engine_shim.proxy.client import UpstreamClient
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.upstream import Upstream

AT_ONCE = 50
SETTLING_SECONDS = 5.0
LONGEST_PATIENCE = 6.0
ODD = ("{", "[]", "null", "{}", '{"choices":1}')
TEXTS = ("hello", "naïve", "日本語", "🦙🦙", "", "\\n", '"', "a" * 300)


def stream_of(draw: random.Random) -> bytes:
    """A stream in one of the line ends, with comments, odd fields and broken payloads; then mangled, maybe."""
    end = draw.choice(("\n", "\r\n", "\r"))
    events = [event(draw, end) for _ in range(draw.randint(0, 8))]
    data = "".join(events).encode() + draw.choice((b"", b"data: [DONE]" + end.encode() * 2, b"data: cut"))
    if draw.random() < 0.4:
        for _ in range(draw.randint(1, 6)):
            at = draw.randrange(len(data) + 1)
            data = data[:at] + bytes([draw.randrange(256)]) + data[at + draw.randint(0, 1) :]
    return data


def event(draw: random.Random, end: str) -> str:
    kind = draw.random()
    if kind < 0.1:
        return f": {draw.choice(TEXTS)}{end}{end}"
    if kind < 0.2:
        return f"event: x{end}id: 1{end}data: {draw.choice(ODD)}{end}{end}"
    delta = {"content": draw.choice(TEXTS)} if draw.random() < 0.8 else {"tool_calls": [{"index": draw.randint(0, 2)}]}
    choice = {"index": draw.randint(0, 1), "delta": delta, "finish_reason": draw.choice((None, None, "stop"))}
    body = json.dumps({"id": "c", "choices": [choice]}, ensure_ascii=draw.random() < 0.5)
    return f"data:{draw.choice(('', ' '))}{body}{end}{end}"


def cut(data: bytes, draw: random.Random) -> list[bytes]:
    parts = []
    while data:
        size = draw.choice((1, 2, 3, 7, 40, 400))
        parts.append(data[:size])
        data = data[size:]
    return parts


async def mangled_streams(upstream: Upstream, count: int, draw: random.Random) -> int:
    """How many did not come out as they went in."""
    client, different = UpstreamClient(ProxySettings()), 0
    waiting = [stream_of(draw) for _ in range(count)]

    async def take() -> None:
        nonlocal different
        while waiting:
            data = waiting.pop()
            raw = [part.decode("latin-1") for part in cut(data, draw)]
            body = json.dumps({"model": "m", "messages": [], "mock": {"events": raw}}).encode()
            different += await ask(client, upstream, body) != data

    await asyncio.gather(*(take() for _ in range(AT_ONCE)))
    client.close()
    return different


async def leavers(upstream: Upstream, count: int, draw: random.Random, *, stay: bool = False) -> None:
    """`count` streams at once; each client leaves at a time of its own, most before the stream's end. `stay`: none
    does."""
    client = UpstreamClient(ProxySettings())
    body = body_of(200, every=0.02)

    async def one() -> None:
        async with await client.request(upstream, "POST", PATH, HEADERS, body) as answer:
            while await answer.read():
                pass

    running = [asyncio.ensure_future(one()) for _ in range(count)]
    draw.shuffle(running)
    for task in () if stay else running:
        await asyncio.sleep(draw.random() * LONGEST_PATIENCE / count)
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    client.close()


async def settled(place: Process, most: Mapping[str, int]) -> dict[str, int]:
    """What the proxy holds: sockets, tasks, running requests, bytes. It gets some time to come down to `most`."""
    waited = 0.0
    while True:
        found = {"sockets": sockets_of(place), **place.held(), "bytes": place.resident_bytes()}
        over = any(found[name] > most.get(name, 0) for name in ("sockets", "tasks", "running"))
        if not over or waited >= SETTLING_SECONDS:
            return found
        await asyncio.sleep(0.1)
        waited += 0.1


def sockets_of(place: Process) -> int:
    found = 0
    for descriptor in Path(f"/proc/{place.running.pid}/fd").iterdir():
        try:
            found += descriptor.readlink().name.startswith("socket:")
        except OSError:
            continue
    return found
