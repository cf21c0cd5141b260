"""The proxy as a process: its listener, its limits on what comes in, and its end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from checkengine.engine_shim.draining import DrainingServer
from checkengine.engine_shim.proxy.app import ProxyApp
from checkengine.engine_shim.proxy.errors import INVALID, ProxyError
from checkengine.engine_shim.proxy.parts import ProxyParts
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.guards.errors import UserError

logger = logging.getLogger("checkengine.proxy")
BACKLOG = 4096
KEEP_ALIVE_SECONDS = 75
POLL_SECONDS = 0.05


def protocol_of(max_header_bytes: int) -> type[HttpToolsProtocol]:
    """Refuses heads that are too large, and what is no HTTP: in JSON, and never in the middle of another answer."""

    class Protocol(HttpToolsProtocol):
        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.head_bytes = 0
            self.refused: ProxyError | None = None

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            names = [name for name, _ in self.headers]
            # The parser takes both: a server behind may then cut the stream of requests at another place.
            if b"transfer-encoding" in names and b"content-length" in names:
                raise self._refusal(400, "both Content-Length and Transfer-Encoding are given", "bad_request")
            if names.count(b"host") > 1 or names.count(b"content-length") > 1:
                raise self._refusal(400, "Host or Content-Length is given twice", "bad_request")
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self.transport.close()
                return
            error = getattr(self, "refused", None) or ProxyError(400, "no valid HTTP request", "bad_request", INVALID)
            status = STATUS_LINE[error.status]
            head = b"".join(name + b": " + value + b"\r\n" for name, value in error.headers())
            self.transport.write(status + head + b"connection: close\r\n\r\n" + error.body())
            self.transport.close()

        def _count(self, size: int) -> None:
            self.head_bytes += size
            if self.head_bytes > max_header_bytes:
                message = f"the request's head has more than {max_header_bytes} bytes (proxy.max_header_bytes)"
                raise self._refusal(431, message, "headers_too_large")

        def _refusal(self, status: int, message: str, code: str) -> ProxyError:
            self.refused = ProxyError(status, message, code, INVALID)
            return self.refused

    return Protocol


class _Requests:
    """What drains behind the server."""

    def __init__(self, parts: ProxyParts) -> None:
        self._parts = parts

    @property
    def draining(self) -> bool:
        return self._parts.draining

    def begin_drain(self) -> None:
        self._parts.draining = True

    async def drain(self) -> bool:
        parts, waited = self._parts, 0.0
        seconds = parts.settings.drain_seconds
        logger.warning("draining: %d requests run on for at most %.0f s", parts.running, seconds)
        while parts.running and waited < seconds:
            await asyncio.sleep(POLL_SECONDS)
            waited += POLL_SECONDS
        if parts.running:
            logger.warning("cut off %d requests that did not finish in time", parts.running)
        return not parts.running


def proxy_server(app: ProxyApp, announce: Callable[[str], None] = lambda address: None) -> DrainingServer:
    return DrainingServer(config_of(app, app.parts.settings), _Requests(app.parts), announce)


def config_of(app: Any, settings: ProxySettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol_of(settings.max_header_bytes),
        ws="none",
        loop="uvloop",
        lifespan="on",
        # An answer that breaks off is no fault of the server, and uvicorn would log each.
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


def serve_until_signal(app: ProxyApp, announce: Callable[[str], None]) -> None:
    """Returns after a drained shutdown. Raises UserError where it cannot listen."""
    settings = app.parts.settings
    server = proxy_server(app, announce)
    try:
        sockets = [bound(settings.host, settings.port)]
    except OSError as error:
        raise UserError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    server.run(sockets)


def bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
