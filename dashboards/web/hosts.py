"""Which Host headers are answered. A stranger's page can point its own name at this machine (DNS rebinding); then its
scripts reach a loopback server as "same origin", and only the Host header tells."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from checkengine.guards.hosts import host_name, is_loopback

REFUSED = b"This name is not one of this dashboard's: see [dashboard] hosts.\n"


class HostCheck:
    """Answers 421 to a Host header that is missing, doubled, unreadable or not allowed. Where it listens on loopback
    only, loopback names and `names` are allowed; on other addresses every name is, unless `names` are given."""

    def __init__(self, app: ASGIApp, *, loopback: bool, names: Iterable[str] = ()) -> None:
        self.app = app
        self._loopback = loopback
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.allows(scope):
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(REFUSED)).encode())]
        await send({"type": "http.response.start", "status": 421, "headers": headers})
        await send({"type": "http.response.body", "body": REFUSED})

    def allows(self, scope: Scope) -> bool:
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        name = host_name(given[0]) if len(given) == 1 else ""
        if not name:
            return False
        if name in self._names or (self._loopback and is_loopback(name)):
            return True
        return not self._loopback and not self._names


def names_of(public_url: str | None, hosts: Iterable[str]) -> list[str]:
    own = [name] if public_url and (name := urlsplit(public_url).hostname) else []
    return [*own, *hosts]
