"""The proxy as a process: its listener, and its end."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from checkengine.engine_shim.draining import DrainingServer
from checkengine.engine_shim.proxy.app import ProxyApp
from checkengine.engine_shim.proxy.client_protocol import protocol_of
from checkengine.engine_shim.proxy.parts import ProxyParts
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.guards.errors import UserError

logger = logging.getLogger("checkengine.proxy")
BACKLOG = 4096
KEEP_ALIVE_SECONDS = 75
POLL_SECONDS = 0.05
SOCKETS_BESIDE = 256
"""Open files beside two sockets a request: kept connections, the spool, the admin port."""


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
        http=protocol_of(settings.max_header_bytes, settings.client_seconds),
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
    allow_sockets(2 * settings.max_requests + SOCKETS_BESIDE)
    server = proxy_server(app, announce)
    try:
        sockets = [bound(settings.host, settings.port)]
    except OSError as error:
        raise UserError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    server.run(sockets)


def allow_sockets(wanted: int) -> None:
    """Two a request, and those that are kept: most systems allow 1,024 until they are asked for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        logger.warning(
            "this system allows %d open files, enough for about %d requests at a time and not for the %d of "
            "proxy.max_requests: raise the limit (ulimit -n, LimitNOFILE=)",
            most,
            max(0, (most - SOCKETS_BESIDE) // 2),
            (wanted - SOCKETS_BESIDE) // 2,
        )


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
