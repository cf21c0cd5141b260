"""The proxy's own addresses: metrics, health and switches, on a port that clients do not reach.

They are served by a thread of their own, with a loop of their own: a slow scrape delays no token.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

import uvicorn

from checkengine.engine_shim.proxy.admin_document import ADMIN
from checkengine.engine_shim.proxy.errors import INVALID, JSON, ProxyError
from checkengine.engine_shim.proxy.headers import header
from checkengine.engine_shim.proxy.server import BACKLOG, bound, config_of
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.guards.errors import UserError
from checkengine.guards.hosts import host_name, is_loopback

MOST_BODY = 4096
START_SECONDS = 20.0
DOCUMENT = "/openapi.json"
READ = frozenset({"/metrics", "/healthz", DOCUMENT, "/checkengine/guards", "/checkengine/upstreams"})
SWITCHED = ("/checkengine/guards/", "/checkengine/upstreams/")
STOOD_IN_FOR = (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"origin")


class Controls(Protocol):
    """What the addresses show and switch; called from the admin thread."""

    def metrics(self, accept: str) -> tuple[bytes, str]: ...

    def status(self) -> Mapping[str, Any]: ...

    def guards(self) -> Sequence[Mapping[str, Any]]: ...

    def switch(self, name: str, action: str) -> None:
        """`disable`, `enable` or `rearm`. Raises KeyError for a guard that is not there."""
        ...

    def upstreams(self) -> Sequence[Mapping[str, Any]]: ...

    def act(self, name: str, action: str, reason: str) -> None:
        """`convict` or `release` an upstream. Raises UserError where that cannot be."""
        ...


class AdminApp:
    def __init__(self, controls: Controls, settings: ProxySettings) -> None:
        self._controls, self._settings = controls, settings

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for stage in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{stage}.complete"})
            return
        try:
            status, headers, body = await self._answer(scope, receive)
        except ProxyError as error:
            status, headers, body = error.status, error.headers(), error.body()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Any, receive: Any) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        method, path = scope["method"], scope["path"]
        if method == "GET" and path == "/metrics":
            body, kind = self._controls.metrics(header(scope["headers"], b"accept").decode("latin-1"))
            return 200, [(b"content-type", kind.encode())], body
        if method == "GET" and path == "/healthz":
            status = self._controls.status()
            return as_json(503 if status.get("draining") else 200, status)
        if method == "GET" and path == DOCUMENT:
            return as_json(200, ADMIN)
        if path == "/checkengine/guards" and method == "GET":
            self._allow(scope)
            return as_json(200, {"guards": [dict(guard) for guard in self._controls.guards()]})
        if path == "/checkengine/upstreams" and method == "GET":
            self._allow(scope)
            return as_json(200, {"upstreams": [dict(each) for each in self._controls.upstreams()]})
        if path.startswith("/checkengine/upstreams/") and method == "POST":
            self._allow(scope)
            return await self._act(path.rpartition("/")[2], await self._body(scope, receive))
        if path.startswith("/checkengine/guards/") and method == "POST":
            self._allow(scope)
            return self._switch(path.rpartition("/")[2], await self._body(scope, receive))
        raise _no_address(path)

    def _switch(self, name: str, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        try:
            action = json.loads(body)["action"]
        except (ValueError, TypeError, KeyError, RecursionError):
            action = None
        if action not in ("disable", "enable", "rearm"):
            raise ProxyError(400, 'give {"action": "disable" | "enable" | "rearm"}', "invalid_value", INVALID)
        try:
            self._controls.switch(name, action)
        except KeyError:
            raise ProxyError(404, "no guard of that name", "no_such_guard", INVALID) from None
        return as_json(200, {"guards": [dict(each) for each in self._controls.guards() if each["name"] == name]})

    async def _act(self, name: str, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        try:
            asked = json.loads(body)
            action, reason = str(asked["action"]), str(asked.get("reason", ""))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ProxyError(400, 'give {"action": "convict" | "release"}', "invalid_value", INVALID) from None
        try:
            await asyncio.to_thread(self._controls.act, unquote(name), action, reason)
        except UserError as error:
            raise ProxyError(400, str(error), "invalid_value", INVALID) from None
        return as_json(200, {"upstreams": [dict(each) for each in self._controls.upstreams()]})

    def _allow(self, scope: Any) -> None:
        """With a token: the token. Without: a caller on this machine that no proxy and no web page stands in for."""
        headers, token = scope["headers"], self._settings.control_token
        if token is not None:
            wanted = f"Bearer {token.get_secret_value()}".encode()
            if not secrets.compare_digest(header(headers, b"authorization"), wanted):
                raise ProxyError(401, "give the control token as a bearer token", "invalid_token", INVALID)
            return
        peer = scope["client"][0] if scope["client"] else ""
        named = host_name(header(headers, b"host").decode("latin-1"))
        stood_in_for = any(header(headers, name) for name in STOOD_IN_FOR)
        if not is_loopback(peer) or not is_loopback(named) or stood_in_for:
            message = "switches answer to this machine only; set proxy.control_token to reach them from elsewhere"
            raise ProxyError(403, message, "not_local", INVALID)

    async def _body(self, scope: Any, receive: Any) -> bytes:
        if header(scope["headers"], b"content-type").partition(b";")[0].strip() != b"application/json":
            # A page in a browser cannot send this type to another site without asking first.
            raise ProxyError(415, "give a body of application/json", "invalid_value", INVALID)
        body = b""
        while True:
            message = await receive()
            body += bytes(message.get("body", b""))
            if len(body) > MOST_BODY:
                raise ProxyError(413, "the body is too large", "body_too_large", INVALID)
            if not message.get("more_body", False):
                return body


def _no_address(path: str) -> ProxyError:
    if path in READ or path.startswith(SWITCHED):
        return ProxyError(405, "this address has another method", "method_not_allowed", INVALID)
    return ProxyError(404, "no such address here", "not_found", INVALID)


def as_json(status: int, body: Mapping[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    return status, [JSON], json.dumps(body).encode()


class AdminThread:
    """Serves until `close`. Raises UserError where the port cannot be had."""

    def __init__(self, controls: Controls, settings: ProxySettings, announce: Callable[[str], None]) -> None:
        assert settings.admin_port is not None
        place = (settings.admin_host, settings.admin_port)
        try:
            self._socket = bound(*place)
        except OSError as error:
            raise UserError(f"cannot listen on {place[0]}:{place[1]} (proxy.admin_port): {error.strerror}") from None
        # From here on connections wait, however long the thread takes to come up.
        self._socket.listen(BACKLOG)
        config = config_of(AdminApp(controls, settings), settings)
        config.loop = "asyncio"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="checkengine-admin", daemon=True)
        self._thread.start()
        host, self.port = self._socket.getsockname()[:2]
        announce(f"http://{f'[{host}]' if ':' in host else host}:{self.port}")

    def close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(START_SECONDS)

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._socket]))
