"""The client towards upstreams: kept connections, one exchange on each at a time. It follows, remembers and changes
nothing: no redirects, no cookies, no decompression, no proxies from the environment."""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from urllib.parse import urlsplit

from checkengine.engine_shim.proxy.connection import ConnectError, Connection, ExhaustedError
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.upstream import Upstream

IDLE_SECONDS = 30.0
"""For which a kept connection is used again: a request must not meet the moment in which the server closes it."""

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)


class Answer:
    """An upstream's answer; `async with` gives its connection back, or closes it where the answer was not read to its
    end."""

    def __init__(self, client: UpstreamClient, place: str, connection: Connection) -> None:
        self._client, self._place, self._connection = client, place, connection
        self.read = connection.read
        """What has come; empty at the end."""

    @property
    def status(self) -> int:
        return self._connection.status

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Names in lower case, in their order."""
        return self._connection.headers

    def close(self) -> None:
        """Stop it: the upstream sees its connection close."""
        self._connection.abort()

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.give_back(self._place, self._connection)


class UpstreamClient:
    """Of one event loop."""

    def __init__(self, settings: ProxySettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._idle: dict[str, deque[Connection]] = {}
        self._tls: ssl.SSLContext | None = None
        self.opened = 0

    async def request(
        self, upstream: Upstream, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Answer:
        """`target`: path and query as they came. Raises UpstreamError; whoever is cancelled closes the connection."""
        parts = urlsplit(upstream.url)
        head = head_of(method, parts.path.encode() + target, parts.netloc, headers, body)
        place = f"{parts.scheme}://{parts.netloc}"
        connection = self._kept(place) or await self._connect(parts.hostname or "", parts.port, parts.scheme)
        try:
            await connection.send(head, body, without_body=method == "HEAD")
        except BaseException:
            connection.abort()
            raise
        return Answer(self, place, connection)

    def give_back(self, place: str, connection: Connection) -> None:
        if not connection.is_reusable:
            connection.abort()
            return
        connection.idle_since = self._clock()
        self._idle.setdefault(place, deque()).append(connection)

    def close(self) -> None:
        for kept in self._idle.values():
            for connection in kept:
                connection.abort()
        self._idle.clear()

    def _kept(self, place: str) -> Connection | None:
        kept = self._idle.get(place)
        while kept:
            connection = kept.pop()
            if connection.is_idle and self._clock() - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    async def _connect(self, host: str, port: int | None, scheme: str) -> Connection:
        self.opened += 1
        secure = self._context() if scheme == "https" else None
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._settings.max_header_bytes),
                    host,
                    port or (443 if secure else 80),
                    ssl=secure,
                )
        except (OSError, TimeoutError) as error:
            if error.errno in EXHAUSTED:
                raise ExhaustedError(type(error).__name__) from None
            raise ConnectError(type(error).__name__) from None
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def head_of(method: str, target: bytes, host: str, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
    lines = [method.encode() + b" " + target + b" HTTP/1.1", b"host: " + host.encode()]
    lines += [name + b": " + value for name, value in headers]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""])
