"""Conversations that come back: their blocks are brought nearer on a hint, and when a request opens one again.

A conversation is named by the header X-Session-Id of its requests. What is kept of it are the names of its KV blocks
(hashes of tokens, in memory only) under a digest of its id; the conversations used last are kept, no text and no token.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from checkengine.engine_shim.engine.request import GenerationRequest, Output
from checkengine.engine_shim.engine.server_errors import ApiError

HEADER = "x-session-id"
MOST_SESSIONS = 4096
MOST_LETTERS = 256
"""Of an id; a longer one is refused in a hint, and names nothing in a request."""


class Prefetching(Protocol):
    """An engine's tiers, from the event loop's thread."""

    @property
    def prefetches(self) -> bool:
        """There is a tier that blocks could be brought from."""

    def names(self, tokens: Sequence[int]) -> list[bytes]:
        """Of the full blocks of these tokens."""

    def prefetch_blocks(self, names: Sequence[bytes]) -> bool:
        """Never waits. False where too many hints wait."""


class Conversations:
    """Belongs to the event loop."""

    def __init__(self, tiers: Prefetching | None, most: int = MOST_SESSIONS) -> None:
        self._tiers = tiers if tiers is not None and tiers.prefetches else None
        self._most = most
        self._secret = secrets.token_bytes(16)
        self._blocks: OrderedDict[bytes, list[bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def opened(self, session: str | None, requests: Sequence[GenerationRequest]) -> Turn | None:
        """A request has come: its blocks set out for host memory while it waits for the step to end."""
        if self._tiers is None:
            return None
        prompts = {tuple(request.prompt_tokens) for request in requests}
        for prompt in prompts:
            self._tiers.prefetch_blocks(self._tiers.names(prompt))
        if not session or len(session) > MOST_LETTERS or len(prompts) != 1:
            return None
        self.note(session, requests[0].prompt_tokens)
        return Turn(self, session, requests[0])

    def note(self, session: str, tokens: Sequence[int]) -> None:
        assert self._tiers is not None
        key = self._key(session)
        self._blocks[key] = self._tiers.names(tokens)
        self._blocks.move_to_end(key)
        if len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def prefetch(self, session: str) -> int:
        """Blocks that set out. ApiError where there is nothing to bring them from, or too much under way."""
        if self._tiers is None:
            raise ApiError("nothing can be prefetched: [engine.tiers] gives no disk", status=404, code="no_tiers")
        names = self._blocks.get(self._key(session)) if len(session) <= MOST_LETTERS else None
        if names is None:
            raise ApiError(
                "no request with this X-Session-Id was seen here of late", status=404, code="session_not_found"
            )
        if not self._tiers.prefetch_blocks(names):
            raise ApiError(
                "too many hints wait; try again later", status=429, kind="rate_limit_error", code="rate_limit_exceeded"
            )
        return len(names)

    def _key(self, session: str) -> bytes:
        return blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16, key=self._secret).digest()


class Turn:
    """One request of a conversation: what it says belongs to the prefix of the next."""

    def __init__(self, conversations: Conversations, session: str, request: GenerationRequest) -> None:
        self._conversations, self._session, self._request = conversations, session, request
        self._said: list[int] = []

    def hear(self, output: Output) -> None:
        if output.name != self._request.name:
            return
        self._said += output.tokens
        if output.finish is not None:
            self._conversations.note(self._session, [*self._request.prompt_tokens, *self._said])


def add_sessions(app: FastAPI, conversations: Conversations) -> None:
    @app.post("/v1/sessions/{session}/prefetch", status_code=202)
    async def prefetch(session: str) -> JSONResponse:
        told: dict[str, Any] = {"object": "session.prefetch", "blocks": conversations.prefetch(session)}
        return JSONResponse(told, 202)
