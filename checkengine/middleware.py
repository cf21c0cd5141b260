"""Guards as ASGI middleware: one class, one line.

app.add_middleware(GuardMiddleware)                                  # FastAPI, Starlette
vllm serve MODEL --middleware checkengine.middleware.GuardMiddleware  # vLLM
"""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from checkengine.config import Settings, load_settings
from checkengine.engine_shim.proxy.middleware import App, GuardedApp
from checkengine.engine_shim.proxy.upstream import OneUpstream, Upstream
from checkengine.proxying import Proxy, assemble_proxy

ITSELF = Upstream("app", "http://app")


class GuardMiddleware:
    """`config`: the path of a checkengine.toml, or Settings; without it the file is looked for as `load_settings` does.

    Metrics are added to `registry`, by default the one that the server exposes. Raises ConfigurationError for a
    configuration that cannot be used.
    """

    def __init__(
        self, app: App, config: Settings | Path | str | None = None, registry: CollectorRegistry | None = REGISTRY
    ) -> None:
        settings = config if isinstance(config, Settings) else load_settings(config)
        self.proxy: Proxy = assemble_proxy(settings, OneUpstream(ITSELF), registry)
        self._app = GuardedApp(app, self.proxy.app.parts)
        # No server ends its middleware: what waits to be written would be lost.
        atexit.register(self.close)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def close(self) -> None:
        """Write what waits and end the threads; at the end of Python without being asked."""
        atexit.unregister(self.close)
        self.proxy.close()
