"""The dashboard as a process: listen, work through replays, end on a signal."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.guards.errors import UserError
from checkengine.replay.catalog import Catalog
from checkengine.replay_worker import ReplayWorker

MOST_CONNECTIONS = 1000
END_SECONDS = 3
"""Streams of events never end by themselves."""


class AnnouncingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


def serve(
    app: FastAPI,
    settings: DashboardSettings,
    catalog: Catalog,
    roots: Sequence[Path],
    announce: Callable[[str], None],
) -> None:
    """Returns after a signal. `roots`: where replays of this machine find their bundles; empty: none runs here.
    UserError where it cannot listen."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=END_SECONDS,
    )
    worker = ReplayWorker(catalog, roots) if roots else None
    if worker is not None:
        worker.start()
    try:
        AnnouncingServer(config, announce).run()
    except SystemExit as error:
        raise UserError(f"cannot listen on {settings.host}:{settings.port}; is another dashboard running?") from error
    finally:
        if worker is not None:
            worker.close()
        catalog.close()
