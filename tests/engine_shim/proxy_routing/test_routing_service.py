"""Router and canaries as the proxy holds them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from checkengine.engine_shim.proxy.routing.fleet import FleetEvent, Standing
from checkengine.engine_shim.proxy.routing.service import Routing, upstreams_of
from checkengine.engine_shim.proxy.routing.settings import (
    Canary,
    CanarySettings,
    DrainSettings,
    RoutingSettings,
    UpstreamSettings,
)
from checkengine.engine_shim.proxy.upstream import Upstream
from checkengine.guards.errors import UserError

ASKED = Canary(name="capital", question="Name the capital of France.", answer="paris")


class Engine:
    """A server that answers every question with `text`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked = 0

    async def chat(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": self.text}}]})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    def server(self) -> TestServer:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        return TestServer(app)


class Told:
    """Waits for what the fleet tells."""

    def __init__(self) -> None:
        self.events: list[FleetEvent] = []
        self.changed = asyncio.Event()

    def __call__(self, event: FleetEvent) -> None:
        self.events.append(event)
        self.changed.set()

    async def until(self, what: str) -> FleetEvent:
        while True:
            for event in self.events:
                if event.what == what:
                    return event
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 20)


def quick(**more: Any) -> RoutingSettings:
    canary = CanarySettings(seconds=0.02, seconds_out=0.02, prompts=(ASKED,))
    return RoutingSettings(canary=canary, drain=DrainSettings(), **more)


def test_a_server_that_begins_to_answer_nonsense_is_drained_by_canaries_and_returns_by_them() -> None:
    async def story() -> None:
        good, bad = Engine("It is Paris."), Engine("It is Paris.")
        told = Told()
        async with good.server() as first, bad.server() as second:
            places = [
                Upstream.of(str(each.make_url("")).rstrip("/"), name) for each, name in ((first, "a"), (second, "b"))
            ]
            routing = Routing(places, quick(), tell=told)
            await routing.start()
            while not (good.asked and bad.asked):
                await asyncio.sleep(0)
            bad.text = "banana banana banana"
            assert (await told.until("drained")).name == "b"
            bad.text = "Paris, of course."
            assert (await told.until("returned")).name == "b"
            assert routing.router.fleet.serving("default") == ["a", "b"]
            await routing.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(story())


def test_a_person_convicts_and_releases_from_another_thread_and_it_is_on_disk(tmp_path: Path) -> None:
    settings = RoutingSettings(canary=CanarySettings(enabled=False), state_file=tmp_path / "state.json")
    places = [Upstream.of("http://a:1", "a"), Upstream.of("http://b:1", "b")]

    async def story() -> None:
        routing = Routing(places, settings)
        await routing.start()
        await asyncio.to_thread(routing.act, "a", "convict", "ada", "the judge's verdict of bundle 7")
        assert routing.router.fleet.standing("a") is Standing.HELD
        told = await asyncio.to_thread(routing.status)
        assert told[0]["standing"] == "held"
        with pytest.raises(UserError, match="no upstream 'c'"):
            await asyncio.to_thread(routing.act, "c", "release", "ada")
        with pytest.raises(UserError, match="not one of convict, release"):
            routing.act("a", "drop", "ada")
        await routing.close()

    asyncio.run(story())
    again = Routing(places, settings)
    assert again.router.fleet.case("a").reason == "the judge's verdict of bundle 7"
    again.act("a", "release", "ada")
    assert again.router.fleet.standing("a") is Standing.SERVING
    again.router.close()


def test_upstreams_are_named_in_the_settings_or_plain_addresses_once_each() -> None:
    settings = RoutingSettings(upstreams=(UpstreamSettings(url="http://a:1/v1", name="first", pool="big"),))
    found = upstreams_of(["http://a:1", "http://b:2/v1"], settings)
    assert [(each.name, each.url, each.pool) for each in found] == [
        ("first", "http://a:1", "big"),
        ("b:2", "http://b:2", "default"),
    ]
    twice = RoutingSettings(upstreams=(UpstreamSettings(url="http://a:1", name="b:2"),))
    with pytest.raises(UserError, match="two upstreams are named b:2"):
        upstreams_of(["http://b:2"], twice)
