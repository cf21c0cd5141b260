"""Router and canaries of one proxy, from its settings: what the composition root holds.

On the proxy's loop: `start` and `close`. From any thread (the admin addresses): `status` and `act`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from typing import TypeVar

import aiohttp

from checkengine.engine_shim.proxy.routing.canary_http import HttpCanaryClient
from checkengine.engine_shim.proxy.routing.canary_runner import CanaryRunner
from checkengine.engine_shim.proxy.routing.fleet import FleetEvent
from checkengine.engine_shim.proxy.routing.router import UpstreamRouter
from checkengine.engine_shim.proxy.routing.settings import RoutingSettings
from checkengine.engine_shim.proxy.upstream import Upstream
from checkengine.guards.errors import UserError

T = TypeVar("T")
ACTIONS = ("convict", "release")
ACT_SECONDS = 5.0


def upstreams_of(urls: Sequence[str], settings: RoutingSettings) -> list[Upstream]:
    """Those that are named in the settings, and the plain addresses that are not among them. UserError for what is no
    address, and for two of one name."""
    found = [Upstream.of(each.url, each.name, each.pool) for each in settings.upstreams]
    known = {each.url for each in found}
    found += [each for each in map(Upstream.of, urls) if each.url not in known]
    names = [each.name for each in found]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise UserError(f"two upstreams are named {', '.join(twice)}; give them names in [[proxy.routing.upstreams]]")
    return found


class Routing:
    """Raises UserError for settings that cannot be; see UpstreamRouter. `token`: the upstreams' bearer token."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        settings: RoutingSettings,
        *,
        token: str | None = None,
        tell: Callable[[FleetEvent], None] = lambda event: None,
    ) -> None:
        self.router = UpstreamRouter(upstreams, settings, tell=tell)
        self._token = token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._canaries: CanaryRunner | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = aiohttp.ClientSession(trust_env=False)
        client = HttpCanaryClient(self._session, self._token)
        router = self.router
        self._canaries = CanaryRunner(router.fleet, router.upstreams(), client, router.settings.canary)
        self._canaries.start()

    async def close(self) -> None:
        """The state is on the disk when this returns."""
        if self._canaries is not None:
            await self._canaries.close()
        if self._session is not None:
            await self._session.close()
        await asyncio.to_thread(self.router.close)

    def status(self) -> list[dict[str, object]]:
        """From any thread; see UpstreamRouter."""
        return self._on_loop(self.router.status)

    def act(self, name: str, action: str, by: str, reason: str = "") -> None:
        """From any thread: `convict` or `release` an upstream. UserError where that cannot be."""
        if action not in ACTIONS:
            raise UserError(f"{action!r} is not one of {', '.join(ACTIONS)}")
        if action == "convict":
            self._on_loop(lambda: self.router.convict(name, by, reason or "no reason given"))
        else:
            self._on_loop(lambda: self.router.release(name, by))

    def _on_loop(self, call: Callable[[], T]) -> T:
        """There, because nothing in the router has a lock."""
        if self._loop is None or not self._loop.is_running() or _running_loop() is self._loop:
            return call()
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def there() -> None:
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(there)
        return done.result(ACT_SECONDS)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
