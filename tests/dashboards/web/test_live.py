"""Server-sent events: they tell of what changed, cost nothing while nobody listens, and are bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from seeded import NOW, Spool, write

from checkengine.dashboards.web import live
from checkengine.dashboards.web.live import MOST_OF_ONE, Live
from checkengine.dashboards.web.problems import Problem
from checkengine.replay.catalog import Catalog, jobs, marks
from checkengine.replay.catalog.marks import Actor
from checkengine.replay.catalog.models import BundleRow


async def next_change(events: AsyncIterator[bytes]) -> bytes:
    while True:
        event = await asyncio.wait_for(anext(events), 30)
        if event.startswith(b"event: changed"):
            return event


def test_a_listener_hears_the_present_state_and_then_each_change(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.01)

    async def story() -> None:
        hub = Live(catalog, lambda: NOW)
        events = await hub.events("anna")
        assert (await anext(events)).startswith(b"retry:")
        first = await next_change(events)
        await asyncio.to_thread(write, catalog, [Spool().finding("inc", NOW, "r", "s")])
        second = await next_change(events)
        assert first != second
        await hub.close()
        assert [event async for event in events if event.startswith(b"event")] == []

    asyncio.run(story())


def test_every_change_that_a_page_shows_has_a_version_of_its_own(catalog: Catalog) -> None:
    hub, spool = Live(catalog, lambda: NOW), Spool()
    seen = [hub.version()]

    def changed(what: str) -> None:
        version = hub.version()
        assert version not in seen, what
        seen.append(version)

    write(catalog, [spool.finding("inc", NOW, "r", "s")])
    changed("a finding")
    write(catalog, [spool.record("bundle", NOW, "r", "", {"bundle": "b", "incident": "inc", "path": "p"})])
    changed("a bundle")
    write(catalog, [spool.record("brake", NOW, "r", "", {"guard": "salad"})])
    changed("a notice")
    me = Actor("anna")
    with catalog.writing() as session:
        marks.mark(session, me, ["inc"], "acknowledged", NOW)
    changed("an acknowledgement")
    with catalog.writing() as session:
        assert session.get(BundleRow, "b") is not None
        job = jobs.submit(session, me, bundle="b", time=NOW)
    changed("a job")
    with catalog.writing() as session:
        assert jobs.claim(session, "w", ["local"], NOW + 1) is not None
    changed("a claimed job")
    with catalog.writing() as session:
        jobs.advance(session, job, "w", progress=0.5, message="", now=NOW + 2)
    changed("progress")
    write(catalog, [spool.replica("r", NOW, applied=3)])
    changed("an obeyed order")


def test_one_client_holds_no_more_than_its_share_of_streams_and_gives_them_back(catalog: Catalog) -> None:
    async def story() -> None:
        hub = Live(catalog, lambda: NOW)
        streams: list[Any] = [await hub.events("anna") for _ in range(MOST_OF_ONE)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(Problem) as refused:
            await hub.events("anna")
        assert refused.value.status == 503
        assert await hub.events("otto")
        await streams.pop().aclose()
        assert await hub.events("anna")
        await hub.close()
        for stream in streams:
            await stream.aclose()

    asyncio.run(story())


def test_nobody_reads_the_catalog_while_nobody_listens(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.01)

    async def story() -> None:
        hub = Live(catalog, lambda: NOW)
        assert hub._reader is None
        events = await hub.events("anna")
        await anext(events)
        await next_change(events)
        await events.aclose()  # type: ignore[attr-defined]
        reader = hub._reader
        assert reader is not None
        await asyncio.wait_for(reader, 30)

    asyncio.run(story())


def test_a_catalog_that_is_down_ends_no_stream(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.01)

    async def story() -> None:
        hub = Live(catalog, lambda: NOW)
        good, broken = hub.version, [True]

        def version() -> str:
            if broken[0]:
                broken[0] = False
                raise RuntimeError("down")
            return good()

        monkeypatch.setattr(hub, "version", version)
        events = await hub.events("anna")
        await anext(events)
        assert await next_change(events)
        await hub.close()

    asyncio.run(story())
    assert "cannot be read: down" in caplog.text


def test_ages_are_drawn_anew_now_and_then(catalog: Catalog) -> None:
    now = [time.time()]
    hub = Live(catalog, lambda: now[0])
    first = hub.version()
    now[0] += live.TICK_SECONDS
    assert hub.version() != first
