"""What all requests of one proxy share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from checkengine.engine_shim.proxy.client import UpstreamClient
from checkengine.engine_shim.proxy.deadlines import Deadlines
from checkengine.engine_shim.proxy.guarding import Bench
from checkengine.engine_shim.proxy.judging import Judge, Note
from checkengine.engine_shim.proxy.pace import FirstTokens
from checkengine.engine_shim.proxy.rescoring import Rescorer
from checkengine.engine_shim.proxy.sessions import Sessions
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.upstream import Router


@dataclass(frozen=True, slots=True)
class ExchangeStart:
    """As `dashboards.traces` reads it: numbers and names, never content."""

    request: str
    sequences: tuple[str, ...]
    operation: str
    model: str
    stream: bool
    sampling: Mapping[str, object] = field(default_factory=dict)
    traceparent: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ExchangeEnd:
    request: str
    model: str = ""
    upstream: str = ""
    status: int | None = None
    finish_reasons: tuple[str, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    counted: bool = False
    """The server counted the tokens; else output tokens are the chunks that said something."""
    ttft_seconds: float | None = None
    total_seconds: float = 0.0
    error: str | None = None
    """Low-cardinality type, for example `client_gone` or `stalled`."""
    note: Note | None = None
    notes: tuple[Note, ...] = ()


class ExchangeObserver(Protocol):
    """Called on the event loop; must be quick. What it raises is logged and goes no further."""

    def started(self, start: ExchangeStart) -> None: ...

    def waited(self, seconds: float) -> None:
        """Between two chunks of one stream."""

    def ended(self, end: ExchangeEnd) -> None: ...

    def unguarded(self, reason: str) -> None:
        """An answer or a part of it passed without guards."""


class NoObserver:
    def started(self, start: ExchangeStart) -> None:
        """Nobody measures."""

    def waited(self, seconds: float) -> None:
        """Nobody measures."""

    def ended(self, end: ExchangeEnd) -> None:
        """Nobody measures."""

    def unguarded(self, reason: str) -> None:
        """Nobody measures."""


class Service(Protocol):
    """What runs on the proxy's loop beside the requests."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class ProxyParts:
    settings: ProxySettings
    router: Router
    bench: Bench | None
    """None: no guards at all, a bare relay."""
    judge: Judge
    first_tokens: FirstTokens
    sessions: Sessions
    observer: ExchangeObserver = field(default_factory=NoObserver)
    deadlines: Deadlines = field(default_factory=Deadlines)
    rescoring: Rescorer | None = None
    services: list[Service] = field(default_factory=list)
    client: UpstreamClient | None = None
    """Made on the event loop when the proxy starts."""
    running: int = 0
    draining: bool = False
    enabled: bool = True
    """The switch of the whole sidecar: off, everything passes."""
    clock: Callable[[], float] = time.monotonic
