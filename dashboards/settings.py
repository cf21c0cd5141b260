"""Settings of what is told to other systems: the sections `[traces]` and `[webhooks]` of checkengine.toml."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from checkengine.guards.settings import Section


class TracesSettings(Section):
    """Spans hold numbers and names, never content."""

    otlp_endpoint: str | None = Field(None, pattern="^https?://")
    """Where spans go by OTLP over HTTP, for example http://collector:4318/v1/traces. Without it none are sent."""
    convention: Literal["latest", "1.36"] = "latest"
    """Names of attributes: those of today's GenAI conventions, or of OpenTelemetry 1.36, for tools that know these."""


class WebhookSettings(Section):
    """Incidents posted to one receiver, in Alertmanager's format, signed as standardwebhooks.com says."""

    url: str | None = Field(None, pattern="^https?://")
    """Without it nothing is sent."""
    secret_file: Path | None = None
    """Lines of `whsec_…`: one, or two while one replaces the other."""
    allowed_networks: tuple[str, ...] = ()
    """Private networks that may be sent to, for example 10.0.0.0/8; others are refused, whatever the name says."""
    dashboard_url: str = Field("", pattern="^(https?://.+)?$")
    """Of checkengine's dashboard, for links."""
    directory: Path | None = None
    """Where messages wait and survive a restart; by default `webhooks` in the directory of the spool."""
    most_waiting: int = Field(1000, ge=1)
    """Messages that wait for a receiver; one that comes beyond is dropped and counted."""

    @field_validator("allowed_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ipaddress.ip_network(network)) for network in networks)

    @model_validator(mode="after")
    def _has_a_secret(self) -> Self:
        if self.url is not None and self.secret_file is None:
            raise ValueError("a webhook needs a secret: name a file that holds whsec_… in secret_file")
        return self
