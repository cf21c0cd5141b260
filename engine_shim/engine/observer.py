"""What the server tells about requests to whoever measures them: numbers and names, never content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from checkengine.engine_shim.engine.phases import PhaseTimes
from checkengine.engine_shim.engine.request import IncidentNote


@dataclass(frozen=True, slots=True)
class RequestStart:
    request: str
    sequences: tuple[str, ...]
    """Names of the request's choices in the engine; one for each of `n`."""
    operation: str
    """`chat` or `text_completion`, as OpenTelemetry names them."""
    model: str
    stream: bool
    sampling: Mapping[str, object] = field(default_factory=dict)
    """As `SamplingParameters.model_dump()`, without stop strings."""
    traceparent: Mapping[str, str] = field(default_factory=dict)
    """W3C trace context headers of the client, if any."""
    tokenise_seconds: float = 0.0
    """Spent before this was told."""


@dataclass(frozen=True, slots=True)
class RequestEnd:
    request: str
    finish_reasons: tuple[str, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    ttft_seconds: float | None = None
    """None where no token came."""
    error: str | None = None
    """Low-cardinality type, for example `cancelled` or `engine`."""
    note: IncidentNote | None = None
    phases: PhaseTimes | None = None
    """None where it was cancelled or refused."""


class RequestObserver(Protocol):
    """Called from the server's event loop and from the engine's thread; must be quick. What it raises is logged and
    goes no further."""

    def started(self, start: RequestStart) -> None: ...

    def produced(self, sequence: str, tokens: int, seconds: float, first: bool) -> None:
        """`seconds` since the sequence's arrival where `first`, else since its last token."""

    def ended(self, end: RequestEnd) -> None: ...


class NoObserver:
    def started(self, start: RequestStart) -> None:
        """Nobody measures."""

    def produced(self, sequence: str, tokens: int, seconds: float, first: bool) -> None:
        """Nobody measures."""

    def ended(self, end: RequestEnd) -> None:
        """Nobody measures."""
