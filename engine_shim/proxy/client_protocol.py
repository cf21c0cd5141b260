"""HTTP as clients may write it: uvicorn's protocol, with limits on heads and without what two servers could read in two
ways."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from checkengine.engine_shim.proxy import errors
from checkengine.engine_shim.proxy.errors import INVALID, ProxyError

VERSIONS = ("1.0", "1.1")


class LimitedProtocol(HttpToolsProtocol):
    """Refuses heads that are too large or too slow, and what is no HTTP: in JSON, and never in the middle of another
    answer."""

    max_header_bytes: int
    head_seconds: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.head_bytes = self.unread_bytes = 0
        self.refused: ProxyError | None = None
        self.in_head = False
        self.head_timer: asyncio.TimerHandle | None = None
        self.running: RequestResponseCycle | None = None
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        self._tell_that_it_left()

    def data_received(self, data: bytes) -> None:
        self.unread_bytes += len(data)
        super().data_received(data)
        if self.unread_bytes > self.max_header_bytes and not self.transport.is_closing():
            # A field that has not ended: the parser keeps it, and tells nothing of it.
            self._too_large()
            self.send_400_response("")
        elif not self.in_head:
            self._stop_waiting()
        elif self.head_timer is None:
            self._wait_for_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.head_bytes, self.refused = 0, None
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self.in_head:
            # What comes behind the body is none of the head's, and would be taken for it.
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.in_head, self.unread_bytes = False, 0
        names = [name for name, _ in self.headers]
        # The parser takes both: a server behind may then cut the stream of requests at another place.
        if b"transfer-encoding" in names and b"content-length" in names:
            raise self._refusal(400, "both Content-Length and Transfer-Encoding are given", "bad_request")
        if names.count(b"host") > 1 or names.count(b"content-length") > 1:
            raise self._refusal(400, "Host or Content-Length is given twice", "bad_request")
        if self.parser.get_http_version() not in VERSIONS:
            raise self._refusal(400, "HTTP/1.1 is spoken here", "bad_request")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.unread_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.running is not None and not self.running.response_complete:
            self._tell_that_it_left()
            self.transport.close()
            return
        error = self.refused or ProxyError(400, "no valid HTTP request", "bad_request", INVALID)
        status = STATUS_LINE[error.status]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in error.headers())
        self.transport.write(status + head + b"connection: close\r\n\r\n" + error.body())
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def _tell_that_it_left(self) -> None:
        """The request that runs: uvicorn tells only the last that came, which may wait behind it."""
        if self.running is not None and not self.running.response_complete:
            self.running.disconnected = True
            self.running.message_event.set()

    def _wait_for_head(self) -> None:
        self.head_timer = self.loop.call_later(self.head_seconds, self._head_did_not_come)

    def _stop_waiting(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _head_did_not_come(self) -> None:
        if self.transport.is_closing():
            return
        if self.unread_bytes:
            self.refused = errors.head_too_slow()
            self.send_400_response("")
        else:
            self.transport.close()

    def _count(self, size: int) -> None:
        self.head_bytes += size
        if self.head_bytes > self.max_header_bytes:
            raise self._too_large()

    def _too_large(self) -> ProxyError:
        message = f"the request's head has more than {self.max_header_bytes} bytes (proxy.max_header_bytes)"
        return self._refusal(431, message, "headers_too_large")

    def _refusal(self, status: int, message: str, code: str) -> ProxyError:
        self.refused = ProxyError(status, message, code, INVALID)
        return self.refused


def protocol_of(max_header_bytes: int, head_seconds: float) -> type[HttpToolsProtocol]:
    """With its limits: uvicorn makes one for each connection, and gives it none."""
    limits = {"max_header_bytes": max_header_bytes, "head_seconds": head_seconds}
    return type("Protocol", (LimitedProtocol,), limits)
