"""Who sent a request: a session's cookie, a bearer token, or whoever sits at this machine."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable

from starlette.requests import Request

from checkengine.dashboards.web.people import LOCAL, Person, Role
from checkengine.dashboards.web.problems import Problem
from checkengine.dashboards.web.rate_limit import RateLimit
from checkengine.dashboards.web.sessions import Sessions
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.dashboards.web.tokens import TokenError, TokenFile, TokenLine
from checkengine.guards.errors import UserError
from checkengine.guards.hosts import is_loopback
from checkengine.replay.catalog import Catalog

logger = logging.getLogger("checkengine.dashboard")

BROWSER_COOKIE = "checkengine_browser"
"""Names a browser, before or without a sign-in; forms are keyed to it."""
EVERYBODY = "*"


class NoSignInError(UserError):
    """It would listen beyond this machine, and let everybody in."""


def needs_sign_in(settings: DashboardSettings) -> bool:
    """NoSignInError where it would be reachable from elsewhere with nobody asked who they are."""
    has_ways = settings.token_file is not None or settings.oidc_issuer is not None
    if (settings.sign_in or not is_loopback(settings.host)) and not has_ways:
        raise NoSignInError(
            f"the dashboard refuses to listen on {settings.host} without a sign-in: set [dashboard] token_file "
            "(`checkengine dashboard --new-token NAME ROLE` makes a line for it) or oidc_issuer, or listen on 127.0.0.1"
        )
    return settings.sign_in or not is_loopback(settings.host)


class Auth:
    """Raises NoSignInError, or TokenError for a token file that cannot be used."""

    def __init__(self, settings: DashboardSettings, catalog: Catalog, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.sessions = Sessions(catalog, settings.session_hours, clock, self.token_role)
        self.required = needs_sign_in(settings)
        self.tokens = TokenFile(settings.token_file) if settings.token_file is not None else None
        self.secure = (settings.public_url or "").startswith("https://")
        self.session_cookie = "__Host-checkengine_session" if self.secure else "checkengine_session"
        self._secret = secrets.token_bytes(32)
        per_second = settings.sign_ins_per_minute / 60
        self._failures = RateLimit(per_second, settings.sign_ins_per_minute)
        self._all_failures = RateLimit(10 * per_second, 10 * settings.sign_ins_per_minute)

    def person(self, request: Request) -> Person | None:
        """Reads the catalog: not for the event loop. Problem 429 for a client that tries too many tokens."""
        if header := request.headers.get("authorization"):
            scheme, _, token = header.partition(" ")
            holder = self.try_token(token.strip(), remote_of(request)) if scheme.lower() == "bearer" else None
            return Person(holder.name, holder.role) if holder is not None else None
        if (person := self.sessions.person(request.cookies.get(self.session_cookie, ""))) is not None:
            return person
        return None if self.required else Person(LOCAL, Role.ADMIN, self.browser_key(request))

    def token_role(self, digest: str) -> Role | None:
        """What the token of this digest lets its holder do; None where it is in the file no more."""
        try:
            return self.tokens.role(digest) if self.tokens is not None else None
        except TokenError:
            return None

    def browser_key(self, request: Request) -> str:
        """Keys the forms of somebody who has not signed in: of this browser, while this process runs."""
        return hmac.new(self._secret, browser_of(request).encode(), hashlib.sha256).hexdigest()

    def try_token(self, token: str, remote: str) -> TokenLine | None:
        """Whose it is. Problem 429 after too many that were nobody's."""
        for limit, client in ((self._failures, remote), (self._all_failures, EVERYBODY)):
            if (seconds := limit.exhausted(client)) > 0:
                raise too_many(seconds)
        if self.tokens is None:
            return None
        try:
            found = self.tokens.holder(token)
        except TokenError as error:
            logger.error("nobody can sign in by token: %s", error)
            return None
        if found is None:
            self._failures.wait(remote)
            self._all_failures.wait(EVERYBODY)
        return found


def too_many(seconds: float) -> Problem:
    wait = str(max(1, round(seconds)))
    return Problem(429, "Too many requests", f"Try again in {wait} s.", {"retry-after": wait})


def browser_of(request: Request) -> str:
    """The browser's cookie; a new one is remembered for the answer to set."""
    known: str | None = request.cookies.get(BROWSER_COOKIE) or getattr(request.state, "new_browser", None)
    if not known or len(known) > 128:
        known = request.state.new_browser = secrets.token_urlsafe(24)
    return known


def remote_of(request: Request) -> str:
    """The address of the connection; headers that a client can write are not asked."""
    return request.client.host if request.client else ""


def local_path(target: str) -> str:
    """Where to go after a sign-in: a path of ours, whatever was asked for."""
    plain = target.startswith("/") and not target.startswith(("//", "/\\")) and "\\" not in target
    return target if plain and target.isprintable() and target.isascii() else "/"
