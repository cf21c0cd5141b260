"""The server as a process: signals, drain, exit."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from checkengine.engine_shim.engine.runtime import EngineRuntime
from checkengine.engine_shim.settings import ServerSettings
from checkengine.guards.errors import UserError

log = logging.getLogger("checkengine.server")


class DrainingServer(uvicorn.Server):
    """On the first SIGTERM or SIGINT new requests get 503 and running ones finish; a second signal ends at once.

    uvicorn alone closes its sockets first, so that a load balancer sees refused connections instead of a 503.
    """

    def __init__(
        self, app: FastAPI, runtime: EngineRuntime, settings: ServerSettings, announce: Callable[[str], None]
    ) -> None:
        super().__init__(uvicorn.Config(app, host=settings.host, port=settings.port, log_level="warning", ws="none"))
        self._runtime, self._seconds, self._announce = runtime, settings.drain_seconds, announce
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drained: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, with the port that the system chose for port 0."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            self._announce(self.address)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._runtime.draining or self._loop is None:
            super().handle_exit(sig, frame)
            self.should_exit = self.force_exit = True
            return
        self._runtime.begin_drain()
        self._loop.call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        self._drained = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        running = self._runtime.requests
        log.warning("draining: %d sequences run on for at most %.0f s", running, self._seconds)
        if not await self._runtime.drain(self._seconds):
            log.warning("cut off %d sequences that did not finish in time", self._runtime.requests)
            self._runtime.stop()
        self.should_exit = True


def serve_until_signal(
    app: FastAPI, runtime: EngineRuntime, settings: ServerSettings, announce: Callable[[str], None]
) -> None:
    """Returns after a drained shutdown; `announce` gets the address once it listens. Raises UserError if it cannot."""
    server = DrainingServer(app, runtime, settings, announce)
    try:
        server.run()
    except SystemExit as error:
        # uvicorn has logged why; a port in use is the common case
        raise UserError(f"cannot listen on {settings.host}:{settings.port}") from error
