"""The server as a process: signals, drain, exit."""

from __future__ import annotations

import logging
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from checkengine.engine_shim.draining import DrainingServer
from checkengine.engine_shim.engine.runtime import EngineRuntime
from checkengine.engine_shim.settings import ServerSettings
from checkengine.guards.errors import UserError

log = logging.getLogger("checkengine.server")


class _Sequences:
    """What drains behind the server."""

    def __init__(self, runtime: EngineRuntime, seconds: float) -> None:
        self._runtime, self._seconds = runtime, seconds

    @property
    def draining(self) -> bool:
        return self._runtime.draining

    def begin_drain(self) -> None:
        self._runtime.begin_drain()

    async def drain(self) -> bool:
        log.warning("draining: %d sequences run on for at most %.0f s", self._runtime.requests, self._seconds)
        if not await self._runtime.drain(self._seconds):
            log.warning("cut off %d sequences that did not finish in time", self._runtime.requests)
            self._runtime.stop()  # which tells their clients, so that no connection has to be cut
        return True


def draining_server(
    app: FastAPI, runtime: EngineRuntime, settings: ServerSettings, announce: Callable[[str], None]
) -> DrainingServer:
    config = uvicorn.Config(app, host=settings.host, port=settings.port, log_level="warning", ws="none")
    return DrainingServer(config, _Sequences(runtime, settings.drain_seconds), announce)


def serve_until_signal(
    app: FastAPI, runtime: EngineRuntime, settings: ServerSettings, announce: Callable[[str], None]
) -> None:
    """Returns after a drained shutdown; `announce` gets the address once it listens. Raises UserError if it cannot."""
    try:
        draining_server(app, runtime, settings, announce).run()
    except SystemExit as error:
        # uvicorn has logged why; a port in use is the common case
        raise UserError(f"cannot listen on {settings.host}:{settings.port}") from error
