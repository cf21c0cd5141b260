"""Addresses that no page of ours has made and no database takes."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

REFUSED = b"An address holds no NUL.\n"


class NoNul:
    """Answers 400 to a query with a NUL in it: PostgreSQL refuses such text, whatever it is compared with."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query: bytes = scope.get("query_string", b"")
        if scope["type"] != "http" or not (b"%00" in query or b"\0" in query):
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(REFUSED)).encode())]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": REFUSED})
