"""Load on proxies, and what it costs: processes, their CPU time and memory, streams and requests."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from checkengine.engine_shim.proxy.client import UpstreamClient
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.upstream import Upstream

PATH = b"/v1/chat/completions"
HEADERS = [(b"content-type", b"application/json")]
MARK = b"chatcmpl-"


@dataclass(slots=True)
class Process:
    """A server of ours; its CPU time is that of all its threads."""

    running: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        total = 0
        for task in Path(f"/proc/{self.running.pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except FileNotFoundError:
                continue
        return total * 1e-9

    def held(self) -> dict[str, int]:
        """Of a proxy: how many tasks its loop has, and how many requests run."""
        assert self.running.stdin is not None
        assert self.running.stdout is not None
        self.running.stdin.write("held\n")
        self.running.stdin.flush()
        found: dict[str, int] = json.loads(self.running.stdout.readline())
        return found

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.running.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def process(module: str, *arguments: str, cores: set[int] | None = None) -> Iterator[Process]:
    """`python -m MODULE ARGUMENTS`, until the block ends; one thread for every library. `cores` are all that it may
    use."""
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    running = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **one_thread},
    )
    assert running.stdout is not None
    assert running.stdin is not None
    if cores:
        os.sched_setaffinity(running.pid, cores)
    try:
        first = json.loads(running.stdout.readline())
        yield Process(running, first if isinstance(first, int) else first["port"])
    finally:
        running.stdin.close()
        running.wait(30)


QUESTION = "Explain how an engine keeps its blocks of memory apart."


def body_of(
    chunks: int,
    *,
    every: float = 0.0,
    stream: bool = True,
    question: str = QUESTION,
    loops: bool = False,
    **more: object,
) -> bytes:
    """`every`: seconds between two chunks; `loops`: the answer says one thing again and again."""
    return json.dumps(
        {
            "model": "mock",
            "stream": stream,
            "messages": [{"role": "user", "content": question}],
            "mock": {"chunks": chunks, "every": every, "loops": loops},
            **more,
        }
    ).encode()


@dataclass(slots=True)
class Received:
    """Of streams: how many chunks, and how long each was under way (seconds)."""

    chunks: int = 0
    delays: list[float] = field(default_factory=list)
    seconds: float = 0.0


async def one_stream(client: UpstreamClient, upstream: Upstream, body: bytes, received: Received) -> None:
    async with await client.request(upstream, "POST", PATH, HEADERS, body) as answer:
        while data := await answer.read():
            now = time.monotonic_ns()
            at = data.find(MARK)
            while at >= 0:
                received.chunks += 1
                end = data.index(b'"', at)
                if (sent := data[at + len(MARK) : end]).isdigit():
                    received.delays.append((now - int(sent)) * 1e-9)
                at = data.find(MARK, end)


async def streams(upstream: Upstream, count: int, body: bytes, seconds: float, spread: float = 0.0) -> Received:
    """`count` at a time, each followed by the next, for so long; their beginnings lie `spread` seconds apart in all."""
    client, received, began = UpstreamClient(ProxySettings()), Received(), time.monotonic()

    async def again(wait: float) -> None:
        await asyncio.sleep(wait)
        while time.monotonic() - began < seconds:
            await one_stream(client, upstream, body, received)

    await asyncio.gather(*(again(spread * number / count) for number in range(count)))
    received.seconds = time.monotonic() - began
    client.close()
    return received


async def whole_answers(upstream: Upstream, clients: int, body: bytes, seconds: float) -> tuple[int, float]:
    """Requests that were answered, and the seconds that they took."""
    client, began, done = UpstreamClient(ProxySettings()), time.monotonic(), 0

    async def again() -> None:
        nonlocal done
        while time.monotonic() - began < seconds:
            await ask(client, upstream, body)
            done += 1

    await asyncio.gather(*(again() for _ in range(clients)))
    client.close()
    return done, time.monotonic() - began


async def ask_each(upstream: Upstream, bodies: Iterable[bytes], clients: int = 1) -> None:
    """Each once, by so many clients."""
    client, waiting = UpstreamClient(ProxySettings()), iter(bodies)

    async def again() -> None:
        for body in waiting:
            await ask(client, upstream, body)

    await asyncio.gather(*(again() for _ in range(clients)))
    client.close()


async def ask(client: UpstreamClient, upstream: Upstream, body: bytes) -> bytes:
    found = b""
    async with await client.request(upstream, "POST", PATH, HEADERS, body) as answer:
        while data := await answer.read():
            found += data
    return found


async def in_turns(upstreams: Sequence[Upstream], body: bytes, rounds: int) -> list[list[float]]:
    """One request to each in turn, for so many rounds; seconds, by upstream."""
    client = UpstreamClient(ProxySettings())
    took: list[list[float]] = [[] for _ in upstreams]
    for number in range(rounds):
        # Another one goes first each time.
        for place in range(len(upstreams)):
            index = (place + number) % len(upstreams)
            began = time.perf_counter()
            await ask(client, upstreams[index], body)
            took[index].append(time.perf_counter() - began)
    client.close()
    return took
