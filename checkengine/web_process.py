"""The dashboard as a process: listen, work through replays, end on a signal."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from checkengine.dashboards.web.live import Live
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.guards.errors import UserError
from checkengine.replay.catalog import Catalog
from checkengine.replay_worker import ReplayWorker

MOST_CONNECTIONS = 1000
END_SECONDS = 3
"""Streams of events never end by themselves."""


class AnnouncingServer(uvicorn.Server):
    def __init__(self, app: FastAPI, config: uvicorn.Config, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self._announce = announce
        self._live: Live = app.state.live

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Pages listen for ever: without this it would wait for them, and then cut them off with a traceback each.
        await self._live.close()
        await super().shutdown(sockets)


def configuration(app: FastAPI, host: str, port: int) -> uvicorn.Config:
    """Headers of proxies are not believed: whoever can connect can write them."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=END_SECONDS,
    )


def serve(
    app: FastAPI,
    settings: DashboardSettings,
    catalog: Catalog,
    roots: Sequence[Path],
    announce: Callable[[str], None],
) -> None:
    """Returns after a signal. `roots`: where replays of this machine find their bundles; empty: none runs here.
    UserError where it cannot listen."""
    config = configuration(app, settings.host, settings.port)
    worker = ReplayWorker(catalog, roots) if roots else None
    if worker is not None:
        worker.start()
    try:
        AnnouncingServer(app, config, announce).run()
    except SystemExit as error:
        raise UserError(f"cannot listen on {settings.host}:{settings.port}; is another dashboard running?") from error
    finally:
        if worker is not None:
            worker.close()
        catalog.close()
