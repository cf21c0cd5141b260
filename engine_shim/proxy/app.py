"""The proxy as an ASGI app: every request is an exchange with an upstream."""

from __future__ import annotations

import secrets
from typing import Any

from checkengine.engine_shim.proxy import errors
from checkengine.engine_shim.proxy.allowing import Allowed
from checkengine.engine_shim.proxy.client import UpstreamClient
from checkengine.engine_shim.proxy.errors import ProxyError
from checkengine.engine_shim.proxy.exchange import Exchange
from checkengine.engine_shim.proxy.parts import ProxyParts

HEALTH = "/checkengine/healthz"
"""The only address of its own beside the upstream's; metrics and switches are on another port."""

REFUSED_METHODS = frozenset({"TRACE", "CONNECT"})
"""An answer to TRACE holds the request's headers, and with them the token that only the upstream is to know."""


class ProxyApp:
    """Pure ASGI: a middleware of Starlette's kind would hide that a client has left."""

    def __init__(self, parts: ProxyParts) -> None:
        self.parts = parts
        self._allowed = Allowed(parts.settings.allow)
        self._prefix = secrets.token_hex(4)
        self._number = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == HEALTH:
            draining = self.parts.draining
            await _answer(send, 503 if draining else 200, b'{"status":"draining"}' if draining else b'{"status":"ok"}')
            return
        if (refusal := self._refusal(scope)) is not None:
            await refuse(send, refusal)
            return
        self._number += 1
        await Exchange(self.parts, f"{self._prefix}-{self._number}", scope, receive, send).run()

    def _refusal(self, scope: Any) -> ProxyError | None:
        parts, raw_path = self.parts, scope["raw_path"]
        if not raw_path.startswith(b"/"):
            return errors.bad_path()
        if scope["method"] in REFUSED_METHODS:
            return errors.bad_method()
        if not self._allowed(raw_path):
            return errors.not_allowed()
        if parts.draining:
            return errors.draining()
        return errors.busy() if parts.running >= parts.settings.max_requests else None

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def start(self) -> None:
        """On the loop that serves."""
        self.parts.client = UpstreamClient(self.parts.settings)
        self.parts.deadlines.start(self.parts.clock)
        for service in self.parts.services:
            await service.start()

    async def stop(self) -> None:
        self.parts.deadlines.stop()
        for service in self.parts.services:
            await service.close()
        if self.parts.client is not None:
            self.parts.client.close()


async def refuse(send: Any, error: ProxyError) -> None:
    # The request's body may still come: the connection is not to be used again.
    headers = [*error.headers(), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body(), "more_body": False})


async def _answer(send: Any, status: int, body: bytes) -> None:
    headers = [errors.JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
