"""A uvicorn server that ends in order: first no new requests, then those that run, then the process."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from types import FrameType
from typing import Protocol

import uvicorn


def keep_what_is_loaded() -> None:
    """Garbage collections pass over whatever exists by now, modules above all: a whole one stood every request still
    for 20 ms and more."""
    gc.collect()
    gc.freeze()


class Drainable(Protocol):
    """What runs behind the server."""

    @property
    def draining(self) -> bool: ...

    def begin_drain(self) -> None:
        """From now on requests are refused with 503; called from a signal handler."""
        ...

    async def drain(self) -> bool:
        """Waits until nothing runs, as long as the settings say. False where connections are to be cut, because what
        runs on them has not ended."""
        ...


class DrainingServer(uvicorn.Server):
    """On the first SIGTERM or SIGINT new requests get 503 and running ones finish; a second signal ends at once.

    uvicorn alone closes its sockets first, so that a load balancer sees refused connections instead of a 503.
    """

    def __init__(self, config: uvicorn.Config, behind: Drainable, announce: Callable[[str], None]) -> None:
        """`announce` gets the address once it listens."""
        super().__init__(config)
        self._behind, self._announce = behind, announce
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drained: asyncio.Task[None] | None = None
        self._owns_process = False

    @property
    def address(self) -> str:
        """Where it listens, with the port that the system chose for port 0."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Until the end of the process: what is loaded by now is kept until then."""
        self._owns_process = True
        try:
            super().run(sockets)
        finally:
            # Else it outlives Python's end, and compiled modules complain of each of their objects that does.
            gc.unfreeze()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            if self._owns_process:
                keep_what_is_loaded()
            self._announce(self.address)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._behind.draining or self._loop is None:
            super().handle_exit(sig, frame)
            self.should_exit = self.force_exit = True
            return
        self._behind.begin_drain()
        self._loop.call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        self._drained = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        self.force_exit = not await self._behind.drain() or self.force_exit
        self.should_exit = True
