"""A mock of an OpenAI-compatible server that costs little itself: prepared bytes, one timer for all streams.

Run as a module it listens on a free port, prints it, and serves until its standard input closes. What a request asks
for stands in `mock`: {"chunks": n, "every": seconds}. Each chunk carries the time at which it was sent (nanoseconds of
the machine's monotonic clock), so that whoever receives it knows how long it was under way.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import httptools
import uvloop

TEXT = (
    "the engine keeps a table of blocks for every sequence and hands them out as tokens arrive while the "
    "scheduler looks for room in the next batch because a long prompt may delay all others it is cut into "
    "pieces that fit between two steps of decoding when memory runs out some sequence has to wait and its "
    "blocks go back to the pool a cache of prefixes saves work for conversations that begin alike so the order "
    "in which requests are sent matters more than people expect at first a kernel reads pages through an index "
    "and must not look past the last one which is easy to get wrong where lengths are no multiple of the page "
    "size tests with random lengths find such faults quickly while tests with round numbers never do that is "
    "why we measure with odd ones and compare every row with a slow reference "
)
WORDS = TEXT.split()
TICK = 0.002


def words(seed: int) -> Iterator[str]:
    """Healthy text: phrases in an order of their own."""
    draw = random.Random(seed)
    while True:
        begin = draw.randrange(len(WORDS) - 8)
        yield from WORDS[begin : begin + draw.randint(4, 8)]
        yield draw.choice((",", ".", ";", "then", "also", "however", "and"))


def chunk(text: str, finish: str | None, sent: int) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "logprobs": None, "finish_reason": finish}
    body = {
        "id": f"chatcmpl-{sent}",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "mock",
        "choices": [choice],
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


class _Texts:
    """Chunks are made once; only the time is put in."""

    def __init__(self) -> None:
        source = words(1)
        made = [chunk(f" {next(source)}", None, 0) for _ in range(4096)]
        self.parts = [part.split(b"chatcmpl-0", 1) for part in made]

    def chunk(self, number: int) -> bytes:
        before, after = self.parts[number % len(self.parts)]
        return before + b"chatcmpl-%d" % time.monotonic_ns() + after


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Mock(asyncio.Protocol):
    def __init__(self, texts: _Texts, streams: set[_Stream], record: list[bytes] | None = None) -> None:
        self._texts, self._streams, self._record = texts, streams, record
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._stream: _Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._streams.discard(self._stream)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        try:
            asked = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            asked = {}
        asked = asked if isinstance(asked, dict) else {}
        mock = asked.get("mock", {})
        if asked.get("stream"):
            self.transport.write(HEAD)
            self._stream = _Stream(self.transport, self._texts, mock.get("chunks", 64), mock.get("every", 0.0))
            self._streams.add(self._stream)
        elif "events" in mock:
            self._replay([part.encode("latin-1") for part in mock["events"]])
        else:
            self.transport.write(whole(mock.get("chunks", 16), loops=mock.get("loops") is True))

    def _replay(self, parts: list[bytes]) -> None:
        """Bytes that the request holds, as a stream, in the parts in which it holds them."""
        self.transport.write(HEAD)
        for part in parts:
            self.transport.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.transport.write(b"0\r\n\r\n")


def prompt_of(length: int, seed: int) -> str:
    """Healthy text of about so many characters."""
    source, parts, size = words(seed), list[str](), 0
    while size < length:
        parts.append(next(source))
        size += len(parts[-1]) + 1
    return " ".join(parts)


def whole(count: int, *, loops: bool = False) -> bytes:
    source = words(count)
    text = "It cannot be helped, and so it goes on. " * 40 if loops else " ".join(next(source) for _ in range(count))
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 12, "completion_tokens": count, "total_tokens": 12 + count}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "mock", "choices": [choice]}
    data = json.dumps(body | {"usage": usage}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data


class _Stream:
    def __init__(self, transport: Any, texts: _Texts, chunks: int, every: float) -> None:
        self.transport, self._texts, self._left, self._every = transport, texts, chunks, every
        # Streams do not beat in time.
        self._number = random.randrange(4096)
        self._due = time.monotonic() + random.random() * every

    def put(self, now: float) -> bool:
        """What is due; False where it is over."""
        while self._due <= now:
            if self._left == 0:
                last = chunk("", "stop", time.monotonic_ns()) + b"data: [DONE]\n\n"
                self.transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(last), last))
                return False
            data = self._texts.chunk(self._number)
            self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))
            self._number += 1
            self._left -= 1
            self._due += self._every
            if not self._every:
                break
        return True


async def pace(streams: set[_Stream]) -> None:
    while True:
        await asyncio.sleep(TICK)
        now = time.monotonic()
        for stream in list(streams):
            if not stream.put(now):
                streams.discard(stream)


async def serve() -> None:
    texts = _Texts()
    streams: set[_Stream] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Mock(texts, streams), "127.0.0.1", 0, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    pacing = asyncio.ensure_future(pace(streams))
    await loop.run_in_executor(None, sys.stdin.read)
    pacing.cancel()
    server.close()


if __name__ == "__main__":
    uvloop.run(serve())
