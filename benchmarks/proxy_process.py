"""One proxy as a process of its own for measuring: `python -m checkengine.benchmarks.proxy_process KIND UPSTREAM`.

It prints the port it listens on, answers every line of its standard input with what it holds, and serves until that
closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from checkengine.engine_shim.draining import keep_what_is_loaded
from checkengine.engine_shim.proxy.app import ProxyApp
from checkengine.engine_shim.proxy.server import bound, config_of
from checkengine.engine_shim.proxy.settings import ProxySettings

HELD: dict[str, int] = {}


def guarded(upstream: str) -> tuple[Any, ProxySettings]:
    """As `checkengine proxy` serves: all guards, metrics, traces and the spool."""
    from checkengine.config import Settings
    from checkengine.proxying import assemble_proxy

    directory = Path(tempfile.mkdtemp(prefix="checkengine-bench-"))
    settings = Settings.model_validate(
        {"proxy": {"upstreams": [upstream], "admin_port": None}, "spool": {"directory": str(directory)}}
    )
    return assemble_proxy(settings).app, settings.proxy


def administered(upstream: str) -> tuple[Any, ProxySettings]:
    """As `guarded`, with its admin addresses on a port that `held` tells."""
    from checkengine.config import Settings
    from checkengine.engine_shim.proxy.admin import AdminThread
    from checkengine.proxying import assemble_proxy

    settings = Settings.model_validate(
        {"proxy": {"upstreams": [upstream], "admin_port": 0}, "spool": {"enabled": False}}
    )
    made = assemble_proxy(settings)
    HELD["admin_port"] = AdminThread(made.controls, settings.proxy, lambda address: None).port
    return made.app, settings.proxy


def bare(upstream: str) -> tuple[Any, ProxySettings]:
    """The same server and client with nothing in between: no body is parsed, nothing is counted."""
    from checkengine.benchmarks.proxy_bare import BareRelay

    return BareRelay(upstream), ProxySettings()


def aiohttp_relay(upstream: str) -> tuple[Any, ProxySettings]:
    """What a relay is commonly made of: aiohttp and a parse of every chunk."""
    from checkengine.benchmarks.proxy_bare import AiohttpRelay

    return AiohttpRelay(upstream), ProxySettings()


KINDS: dict[str, Callable[[str], tuple[Any, ProxySettings]]] = {
    "guarded": guarded,
    "administered": administered,
    "bare": bare,
    "aiohttp": aiohttp_relay,
}


async def serve(kind: str, upstream: str) -> None:
    app, settings = KINDS[kind](upstream)
    server = uvicorn.Server(config_of(app, settings))
    listener = bound("127.0.0.1", 0)
    serving = asyncio.ensure_future(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    keep_what_is_loaded()
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        running = app.parts.running if isinstance(app, ProxyApp) else 0
        print(json.dumps({"tasks": len(asyncio.all_tasks()), "running": running, **HELD}), flush=True)
    server.should_exit = server.force_exit = True
    await serving
    if isinstance(app, ProxyApp):
        await _quiet(app.stop)


async def _quiet(stop: Callable[[], Awaitable[None]]) -> None:
    await stop()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
