"""Where a request can go, and who chooses: the contract between the relay and the routing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol
from urllib.parse import urlsplit

from checkengine.guards.errors import UserError


@dataclass(frozen=True, slots=True)
class Upstream:
    """One server. Its address comes from the configuration and from nowhere else."""

    name: str
    """As in metrics and headers; never with a password in it."""
    url: str
    """Scheme, host, port, and a path that all its addresses begin with; no slash at the end."""
    pool: str = "default"

    @classmethod
    def of(cls, url: str, name: str | None = None, pool: str = "default") -> Upstream:
        """Raises UserError for what is no address of a server. A /v1 at its end is taken off: paths bring their own."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UserError(f"upstream {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UserError(
                f"upstream {url!r}: give http:// or https://, a host and a port, for example http://engine:8000"
            )
        if parts.username or parts.password:
            raise UserError(
                f"upstream of host {parts.hostname}: a password in the address is not used; set upstream_token"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = f"{host}:{port}" if port else host
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(name or place, f"{parts.scheme}://{place}{path}", pool)


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What a router may know of a request before it is sent."""

    id: str
    path: str
    """Without the query, for example /v1/chat/completions."""
    model: str = ""
    stream: bool = False
    body: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """The parsed JSON body, read only; empty where the body is none that the proxy reads. Never stored or logged."""
    session: str = ""
    """The conversation's key; empty where it has none."""
    excluded: frozenset[str] = frozenset()
    """Names of upstreams that have failed this request, or that it must not go to."""
    tokens: int | None = None
    """Asked for at most, where the request says so."""


class Ending(StrEnum):
    """How an exchange with an upstream ended, as the upstream's health is concerned."""

    DONE = "done"
    """Answered in full (4xx too: the client's fault is no sign of a sick server)."""
    REFUSED = "refused"
    """No connection, or closed before a byte of an answer."""
    BUSY = "busy"
    """429 or 503."""
    SERVER_ERROR = "server_error"
    """Another 5xx."""
    BROKEN = "broken"
    """Reset, cut off or garbage after the answer began."""
    STALLED = "stalled"
    """Silent for longer than is allowed."""
    CLIENT_GONE = "client_gone"
    STOPPED = "stopped"
    """A guard ended it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request on one upstream. Times are seconds."""

    ending: Ending
    status: int | None = None
    connected_seconds: float | None = None
    ttft_seconds: float | None = None
    """From sending to the first byte of the answer's body that holds output."""
    total_seconds: float = 0.0
    prompt_tokens: int | None = None
    """As the server counted them."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    """Kinds of findings with severity ERROR."""


class NoUpstream(Exception):
    """None may take the request now; the message is for the client and names no address."""


class Router(Protocol):
    """Chooses. Called on the event loop, so it answers at once and never raises anything but NoUpstream from `choose`.

    Each `started` is followed by exactly one `finished`, whatever happens.
    """

    def choose(self, request: RoutedRequest) -> Upstream:
        """Raises NoUpstream where all are excluded or out of service."""
        ...

    def started(self, upstream: Upstream, request: RoutedRequest) -> None: ...

    def finished(self, upstream: Upstream, request: RoutedRequest, outcome: Outcome) -> None: ...

    def upstreams(self) -> tuple[Upstream, ...]: ...


class OneUpstream:
    """The only one; it is asked again where it failed only if the request was never sent."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.running = 0

    def choose(self, request: RoutedRequest) -> Upstream:
        if self.upstream.name in request.excluded:
            raise NoUpstream("the server behind this proxy failed the request, and there is no other one")
        return self.upstream

    def started(self, upstream: Upstream, request: RoutedRequest) -> None:
        self.running += 1

    def finished(self, upstream: Upstream, request: RoutedRequest, outcome: Outcome) -> None:
        self.running -= 1

    def upstreams(self) -> tuple[Upstream, ...]:
        return (self.upstream,)
