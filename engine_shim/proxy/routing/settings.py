"""Settings of routing: `[proxy.routing]` of checkengine.toml."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator

from checkengine.guards.settings import Section, SiblingSettings


class LineSettings(Section):
    """Two lines of requests: those of which little is in a prefix cache (cold), and the others (warm)."""

    cold: tuple[str, ...] = ()
    """Names of the upstreams of the cold line; all others are the warm line. With none there is one line, and prefixes
    and loads decide within it."""
    spill: float = Field(4.0, ge=1)
    """A cold request joins the warm line where it would wait this many times as long in its own; large: never."""
    shared_cache: bool = False
    """The upstreams fetch each other's KV (LMCache, Mooncake's store…): a hit on one is a hit on all."""
    cold_below: float = Field(0.5, ge=0, le=1)
    """Estimated share of the prompt that is cached, below which a request is cold…"""
    cold_from_bytes: int = Field(1024, ge=0)
    """…if at least this much of its prompt is not cached: a short prompt delays nobody, wherever it goes."""
    index_blocks: int = Field(500_000, ge=1)
    """Of the index of prefixes, all upstreams together; about 130 bytes each."""
    bytes_of_running: int = Field(512, ge=0)
    """Bytes of prompt that a running request weighs, beside the prompts that still wait for their first token."""


class DrainSettings(Section):
    """When an upstream is taken out, and how many may be out."""

    incidents: int = Field(5, ge=1)
    """Requests with an incident, of as many different clients as are known, that make a burst…"""
    share: float = Field(0.2, gt=0, le=1)
    """…if they are at least this share of the requests that ended in the same time."""
    seconds: float = Field(60.0, gt=0)
    kinds: tuple[str, ...] = (
        "logits.nonfinite",
        "logits.uniform",
        "logits.magnitude",
        "token.impossible",
        "sampler.inconsistent",
        "kv.integrity",
        "stop.ignored",
        "repetition.loop",
        "text.salad",
        "language.switch",
        "latency.slo",
        "upstream.error",
    )
    """Kinds of finding that count; `upstream.error` is an answer of 5xx, or one that broke off or stalled."""
    most_share: float = Field(0.1, gt=0, le=1)
    """Of a pool that may be out for bursts and convictions; at least one upstream, never the last one."""
    failures_to_down: int = Field(3, ge=1)
    """Connections in a row that fail; then only canaries are sent until one is answered."""


class Canary(Section):
    """A prompt whose answer is known."""

    name: str = Field(min_length=1)
    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    """A regular expression that is searched for, whatever the case of the letters."""
    tokens: int = Field(24, ge=1)
    language: str = Field("en", pattern="^[a-z]{2}$")

    @field_validator("answer")
    @classmethod
    def _is_regular(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        return value


class CanarySettings(Section):
    """Prompts whose answer is known, sent while nobody asks."""

    seconds: float = Field(30.0, gt=0)
    """Between canaries of an upstream that serves; ± 20 %, so that a fleet is not asked at once."""
    seconds_out: float = Field(10.0, gt=0)
    """…and of one that is drained or down."""
    timeout_seconds: float = Field(20.0, gt=0)
    failures: int = Field(2, ge=1)
    """In a row, after which a serving upstream is drained."""
    passes: int = Field(3, ge=1)
    """In a row, after which a drained upstream returns."""
    most_entropy: float = Field(2.5, gt=0)
    """Nats a token, mean over a canary's answer: known answers are near 0, a spread of noise is not."""
    enabled: bool = True
    prompts: tuple[Canary, ...] = ()
    """Instead of the built-in ones: for models that speak no English or think aloud before they answer."""


class UpstreamSettings(Section):
    """`[[proxy.routing.upstreams]]`: an upstream with a name or a pool of its own."""

    url: str = Field(min_length=1)
    name: str | None = Field(None, min_length=1)
    """In metrics, logs and the state file. Default: host and port."""
    pool: str = Field("default", min_length=1)
    """Upstreams of a pool stand in for each other. One that bears a model's name gets the requests for that model."""


class RoutingSettings(Section):
    upstreams: tuple[UpstreamSettings, ...] = ()
    lines: LineSettings = Field(default_factory=LineSettings)
    drain: DrainSettings = Field(default_factory=DrainSettings)
    canary: CanarySettings = Field(default_factory=CanarySettings)
    siblings: SiblingSettings = Field(default_factory=lambda: SiblingSettings(dimensions=("replica",)))
    state_file: Path | None = None
    """Who is out, and why, through a restart. Without one a restart forgets convictions."""
