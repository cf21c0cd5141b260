"""One HTTP/1.1 connection to an upstream: httptools parses, asyncio moves the bytes, nothing is copied twice.

Own code where a library would do, because of what was measured: aiohttp 3.14 never tells a reader that a chunk's size
is garbage (the client then hangs until a timeout), and costs more of a core than the rest of the relay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import httptools

HIGH_WATER = 1 << 17
"""Bytes of a body that wait here; beyond it the upstream is not read any more until half of them are gone."""


class UpstreamError(Exception):
    """An exchange with an upstream failed; the message holds no content."""


class ConnectError(UpstreamError):
    """No connection: the request was never sent."""


class ExhaustedError(UpstreamError):
    """No connection, because this process or this machine has no sockets left."""


class ClosedBeforeError(UpstreamError):
    """Closed or reset before a byte of an answer came."""

    def __init__(self, message: str, *, was_kept: bool) -> None:
        """`was_kept`: the connection had answered before, so that the server may have closed it without the request."""
        super().__init__(message)
        self.was_kept = was_kept


class CutOffError(UpstreamError):
    """Closed or reset in the middle of an answer."""


class GarbageError(UpstreamError):
    """What came is not HTTP, or more of it than is taken."""


class Connection(asyncio.Protocol):
    """Takes one exchange after another; `is_reusable` says whether it may have the next."""

    def __init__(self, max_head_bytes: int) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.idle_since = 0.0
        self.exchanges = 0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._most_head = max_head_bytes
        self._parser: Any = None
        self._head_bytes = self._unread_bytes = 0
        self._begun = self._head_done = self._complete = False
        self._without_body = self._may_go_on = False
        self._paused = False
        self._error: UpstreamError | None = None
        self._body: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_reusable(self) -> bool:
        return (
            self._complete
            and self._error is None
            and not self._without_body
            and not self.transport.is_closing()
            and self._may_go_on
        )

    @property
    def is_idle(self) -> bool:
        """Nothing has come since the last exchange."""
        return self._error is None and not self.transport.is_closing()

    async def send(self, head: bytes, body: bytes, *, without_body: bool) -> None:
        """Returns when the answer's head is there. `without_body`: it is that of a HEAD request."""
        self.exchanges += 1
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = self._unread_bytes = 0
        self._begun = self._head_done = self._complete = False
        self._without_body = without_body
        self.transport.write(head + body if len(body) < HIGH_WATER else head)
        if len(body) >= HIGH_WATER:
            self.transport.write(body)
        while not self._head_done:
            await self._wait()

    async def read(self) -> bytes:
        """All of the body that has come; empty at its end. Raises CutOffError or GarbageError."""
        while not self._body:
            if self._complete:
                return b""
            await self._wait()
        if len(self._body) == 1:
            data = self._body.popleft()
        else:
            data = b"".join(self._body)
            self._body.clear()
        self._waiting_bytes = 0
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        return data

    def abort(self) -> None:
        self.transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: UpstreamError) -> None:
        if self._error is None:
            self._error = error
        self.transport.abort()
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are none of asyncio's class.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._complete:
            # Nobody asked: what comes now must never be taken for the next answer.
            self._fail(GarbageError("data without a request"))
            return
        self._begun = True
        self._unread_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(GarbageError("an upgrade that nobody asked for"))
        except httptools.HttpParserError:
            self._fail(GarbageError("no valid HTTP"))
        else:
            if self._unread_bytes > self._most_head:
                # A field or a chunk's size that has not ended: the parser keeps it, and tells nothing of it.
                self._fail(GarbageError("the answer's head is too long"))
            elif self._body or self._head_done:
                self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None and not self._complete:
            if not self._begun:
                self._error = ClosedBeforeError("closed before the answer", was_kept=self.exchanges > 1)
            elif self._head_done and self._ends_with_connection():
                self._complete = True
            else:
                self._error = CutOffError("closed in the middle of the answer")
        elif self._error is None:
            self._error = CutOffError("closed")
        self._wake()

    # httptools

    def on_message_begin(self) -> None:
        if self._complete:
            # Raised, so that no byte of it is read: what came before it is whole.
            raise GarbageError("an answer without a request")
        # Heads before the answer's own (103 Early Hints) count as one with it: somebody may send them without end.
        self.headers = []

    def on_status(self, status: bytes) -> None:
        self._count(len(status))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if not self._head_done:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status == 101:
            self._fail(GarbageError("an upgrade that nobody asked for"))
        elif not 100 <= self.status < 600:
            raise GarbageError("no status that HTTP has")
        elif self.status >= 200:
            self._head_done, self._unread_bytes = True, 0
            if self._without_body:
                self._complete = True

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        if self._without_body:
            return
        self._body.append(body)
        self._waiting_bytes += len(body)
        if self._waiting_bytes > HIGH_WATER and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        # 100 Continue and 103 Early Hints are followed by the answer itself.
        self._complete = self._head_done
        self._may_go_on = self._parser.should_keep_alive()

    def _count(self, size: int) -> None:
        self._head_bytes += size + 4
        if self._head_bytes > self._most_head:
            raise GarbageError("the answer's head is too long")

    def _ends_with_connection(self) -> bool:
        """Neither a length nor chunks: the end of the connection is the end of the body."""
        names = {name for name, _ in self.headers}
        return b"content-length" not in names and b"transfer-encoding" not in names
