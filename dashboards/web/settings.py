"""Settings of the web user interface: the section `[dashboard]` of checkengine.toml."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from checkengine.guards.settings import Section


class DashboardSettings(Section):
    """Who may look, and from where."""

    host: str = Field("127.0.0.1", min_length=1)
    """Address to listen on. Beyond this machine a token file or OIDC is needed."""
    port: int = Field(8080, ge=0, le=65535)
    """0 takes any free port."""
    public_url: str | None = Field(None, pattern="^https?://[^/?#]+$")
    """How browsers reach it, where a proxy stands before it. https makes cookies secure."""
    hosts: tuple[str, ...] = ()
    """Names that may stand in a Host header besides this machine's own and that of public_url."""
    sign_in: bool = False
    """Ask for a sign-in on a loopback address, too."""
    token_file: Path | None = None
    """Lines of `NAME ROLE sha256:HEX`; `checkengine dashboard --new-token NAME ROLE` prints one."""
    session_hours: float = Field(12.0, gt=0, le=24 * 31)
    oidc_issuer: str | None = Field(None, pattern="^https?://")
    oidc_client_id: str = ""
    oidc_client_secret_file: Path | None = None
    oidc_role_claim: str = "groups"
    """The claim of the identity that lists groups."""
    oidc_viewers: tuple[str, ...] = ()
    """Groups whose members may look; empty: whoever the issuer signs in…"""
    oidc_operators: tuple[str, ...] = ()
    """…who may triage, replay and turn switches as well…"""
    oidc_admins: tuple[str, ...] = ()
    """…and who may read content and erase it."""
    clean_objective: float = Field(0.999, gt=0, lt=1)
    """Share of sequences without an ERROR that the first page holds the service to…"""
    ttft_seconds: float = Field(0.5, gt=0)
    """…and the time to first token of 95 % of them."""
    requests_per_second: float = Field(20.0, gt=0)
    """Of one client, on average; bursts of ten seconds' worth pass."""
    sign_ins_per_minute: float = Field(10.0, gt=0)
    """Failed ones, of one client; of all together ten times as many."""

    @model_validator(mode="after")
    def _oidc_is_whole(self) -> DashboardSettings:
        if self.oidc_issuer is not None and not (self.oidc_client_id and self.public_url):
            raise ValueError("oidc_issuer needs oidc_client_id and public_url")
        return self
