"""To the issuer and back."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from checkengine.dashboards.web import csrf
from checkengine.dashboards.web.auth import local_path
from checkengine.dashboards.web.forms import read_form
from checkengine.dashboards.web.oidc import Issuer, OidcError, Started
from checkengine.dashboards.web.pages import Pages
from checkengine.dashboards.web.people import Person, Role
from checkengine.dashboards.web.problems import Problem
from checkengine.dashboards.web.sign_in import begin
from checkengine.dashboards.web.tokens import digest_of
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.people import SessionRow

FLOW_SECONDS = 600.0
FLOW = "oidc"
"""Role of a session row that is no session yet: `Sessions.person` takes none of these."""
COOKIE = "checkengine_flow"


def router(pages: Pages, catalog: Catalog, clock: Callable[[], float], issuer: Issuer) -> APIRouter:
    made = APIRouter()
    auth = pages.auth

    @made.post("/sign-in/oidc")
    async def start(request: Request) -> Response:
        form = await read_form(request)
        stranger = Person("", Role.VIEWER, auth.browser_key(request))
        csrf.check(stranger, form.one(csrf.FIELD), request.headers, auth.settings.public_url)
        started = await run_in_threadpool(issuer.start)
        await run_in_threadpool(remember, catalog, started, local_path(form.one("next")), clock())
        response = RedirectResponse(started.address, 303)
        pages.set_cookie(response, COOKIE, started.state, FLOW_SECONDS)
        return response

    @made.get("/sign-in/back")
    def back(request: Request, state: str = "", code: str = "", error: str = "") -> Response:
        """The state must be the browser's own, so that nobody is signed in as somebody else; it is good for once."""
        own = request.cookies.get(COOKIE, "")
        if not state or len(state) > 128 or not hmac.compare_digest(own.encode(), state.encode()):
            raise Problem(400, "That sign-in did not begin here", "Begin it again.")
        started = taken(catalog, state, clock())
        if started is None:
            raise Problem(400, "That sign-in took too long, or was used already", "Begin it again.")
        if error or not 0 < len(code) <= 4096:
            raise Problem(401, "The issuer did not sign you in", "Begin again, or ask whoever runs it.")
        try:
            identity = issuer.finish(code, started)
        except OidcError as problem:
            raise Problem(403, "You are not signed in", str(problem)) from None
        response = begin(pages, identity.name, identity.role, local_path(started["next"]), identity.subject)
        response.delete_cookie(COOKIE, path="/")
        return response

    return made


def issuer_name(issuer: Issuer) -> str:
    return urlsplit(str(issuer.settings.oidc_issuer)).hostname or ""


def remember(catalog: Catalog, started: Started, target: str, now: float) -> None:
    data = {"verifier": started.verifier, "nonce": started.nonce, "next": target}
    row = SessionRow(id=digest_of(started.state), name="", role=FLOW, csrf="", data=data)
    row.created, row.last_seen, row.expires = now, now, now + FLOW_SECONDS
    with catalog.writing() as session:
        session.add(row)


def taken(catalog: Catalog, state: str, now: float) -> dict[str, str] | None:
    with catalog.writing() as session:
        row = session.get(SessionRow, digest_of(state))
        if row is None or row.role != FLOW:
            return None
        told, expires = dict(row.data), row.expires
        session.delete(row)
    return {name: str(value) for name, value in told.items()} if now < expires else None
