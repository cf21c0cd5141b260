"""Settings of metrics and traces: the section `[traces]` of checkengine.toml."""

from __future__ import annotations

from pydantic import Field

from checkengine.guards.settings import Section


class TracesSettings(Section):
    """Spans hold numbers and names, never content."""

    otlp_endpoint: str | None = Field(None, pattern="^https?://")
    """Where spans go by OTLP over HTTP, for example http://collector:4318/v1/traces. Without it none are sent."""
