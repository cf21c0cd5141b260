"""Server-sent events: a page hears that something changed, and asks for itself again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial

import sqlalchemy as sa
from starlette.concurrency import run_in_threadpool

from checkengine.dashboards.web.problems import Problem
from checkengine.guards.errors import first_line
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.fleet import ControlRow, JobRow, ReplicaRow
from checkengine.replay.catalog.models import ActionRow, BundleRow, FindingRow, NoticeRow, ReplayRow
from checkengine.replay.catalog.people import AuditRow

logger = logging.getLogger("checkengine.dashboard")

POLL_SECONDS = 1.0
TICK_SECONDS = 15.0
"""So often a page is drawn anew although nothing happened, for the ages on it."""
BEAT_SECONDS = 20.0
"""A comment on the stream, so that proxies keep it and a client that is gone is noticed."""
MOST_STREAMS = 500
MOST_OF_ONE = 20


class Live:
    """One reader of the catalog for all streams; it reads only while somebody listens."""

    def __init__(self, catalog: Catalog, clock: Callable[[], float] = time.time) -> None:
        self._catalog, self._clock = catalog, clock
        self._streams: Counter[str] = Counter()
        self._version = ""
        self._changed = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None
        self._closed = False

    async def events(self, client: str) -> AsyncIterator[bytes]:
        """Problem 503 before the first event where too many listen already."""
        if self._streams.total() >= MOST_STREAMS or self._streams[client] >= MOST_OF_ONE:
            raise Problem(503, "Too many pages listen", "Close some, or reload by hand.", {"retry-after": "60"})
        return self._stream(client)

    async def _stream(self, client: str) -> AsyncIterator[bytes]:
        self._streams[client] += 1
        self._start()
        told = ""
        try:
            yield b"retry: 3000\n\n"
            while not self._closed:
                async with self._changed:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait_for(partial(self._news, told)), BEAT_SECONDS)
                if self._version == told:
                    yield b": still here\n\n"
                elif self._version:
                    told = self._version
                    yield f"event: changed\ndata: {told}\n\n".encode()
        finally:
            self._streams[client] -= 1
            if self._streams[client] <= 0:
                del self._streams[client]

    def _news(self, told: str) -> bool:
        return self._closed or self._version not in ("", told)

    async def close(self) -> None:
        """End every stream, so that the server can end."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()

    def _start(self) -> None:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while self._streams and not self._closed:
            try:
                version = await run_in_threadpool(self.version)
            except Exception as error:
                logger.error("the catalog cannot be read: %s", first_line(error))
                version = self._version
            if version != self._version:
                self._version = version
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(POLL_SECONDS)

    def version(self) -> str:
        """Differs whenever a page may."""
        parts = [sa.select(sa.func.max(column)).scalar_subquery() for column in COLUMNS]
        with self._catalog.reading() as session:
            row = session.execute(sa.select(*parts)).one()
        return "-".join("" if value is None else f"{value}" for value in (*row, int(self._clock() // TICK_SECONDS)))


COLUMNS = (
    FindingRow.id,
    ActionRow.id,
    NoticeRow.id,
    AuditRow.id,
    ControlRow.id,
    BundleRow.time,
    ReplayRow.time,
    ReplicaRow.applied,
    JobRow.created,
    JobRow.started,
    JobRow.heartbeat,
    JobRow.ended,
)
"""Of each the largest; whatever pages show moves one of them."""
