"""Canaries over HTTP, on connections of their own: they do not queue behind traffic in a pool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from checkengine.engine_shim.proxy.routing.canary_runner import CanaryAnswer
from checkengine.engine_shim.proxy.upstream import Upstream

MOST_BYTES = 1 << 20


class HttpCanaryClient:
    """See CanaryClient. `token` is the upstreams' bearer token. The session is the caller's, and closed by it."""

    def __init__(self, session: aiohttp.ClientSession, token: str | None = None) -> None:
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def chat(self, upstream: Upstream, body: Mapping[str, Any]) -> CanaryAnswer:
        return await self._ask("POST", upstream.url + "/v1/chat/completions", body)

    async def model(self, upstream: Upstream) -> str:
        answer = await self._ask("GET", upstream.url + "/v1/models", None)
        try:
            return str(answer.body["data"][0]["id"])  # type: ignore[index]
        except (TypeError, LookupError):
            raise ConnectionError(f"{upstream.name} lists no model") from None

    async def _ask(self, method: str, url: str, body: Mapping[str, Any] | None) -> CanaryAnswer:
        try:
            async with self._session.request(
                method, url, json=body, headers=self._headers, allow_redirects=False
            ) as answer:
                data = await _read(answer)
        except aiohttp.ClientError as error:
            raise ConnectionError(type(error).__name__) from error
        try:
            return CanaryAnswer(answer.status, json.loads(data))
        except (ValueError, RecursionError):
            return CanaryAnswer(answer.status, None)


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """`content.read(n)` returns what has come so far, not the whole."""
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > MOST_BYTES:
            raise ConnectionError("the answer to a canary is too long")
    return bytes(data)
