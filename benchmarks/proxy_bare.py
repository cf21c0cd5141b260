"""Relays to measure the proxy against: its own server and client with nothing in between, and aiohttp's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from checkengine.engine_shim.proxy.client import UpstreamClient
from checkengine.engine_shim.proxy.headers import to_client, to_upstream
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.upstream import Upstream


async def body_of(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


async def gone(receive: Any, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


class Relay:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await (self.start() if message["type"] == "lifespan.startup" else self.stop())
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        body = await body_of(receive)
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.ensure_future(gone(receive, task))
        try:
            await self.relay(scope, body, send)
        except asyncio.CancelledError:
            task.uncancel()
        finally:
            watcher.cancel()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def relay(self, scope: Any, body: bytes, send: Any) -> None:
        raise NotImplementedError


class BareRelay(Relay):
    def __init__(self, upstream: str) -> None:
        self._upstream = Upstream.of(upstream)

    async def start(self) -> None:
        self._client = UpstreamClient(ProxySettings())

    async def stop(self) -> None:
        self._client.close()

    async def relay(self, scope: Any, body: bytes, send: Any) -> None:
        headers = to_upstream(scope["headers"], client=scope["client"][0])
        async with await self._client.request(
            self._upstream, scope["method"], scope["raw_path"], headers, body
        ) as answer:
            start = {"type": "http.response.start", "status": answer.status, "headers": to_client(answer.headers)}
            await send(start)
            while data := await answer.read():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class AiohttpRelay(Relay):
    def __init__(self, upstream: str) -> None:
        self._upstream = upstream

    async def start(self) -> None:
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        )

    async def stop(self) -> None:
        await self._session.close()

    async def relay(self, scope: Any, body: bytes, send: Any) -> None:
        headers = [
            (name.decode(), value.decode()) for name, value in to_upstream(scope["headers"], client=scope["client"][0])
        ]
        url = self._upstream + scope["raw_path"].decode()
        async with self._session.request(scope["method"], url, headers=headers, data=body) as answer:
            found = to_client([(name.lower(), value) for name, value in answer.raw_headers])
            await send({"type": "http.response.start", "status": answer.status, "headers": found})
            async for data in answer.content.iter_any():
                self._parse(data)
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    @staticmethod
    def _parse(data: bytes) -> None:
        for event in data.split(b"\n\n"):
            if event.startswith(b"data: {"):
                json.loads(event[6:])
