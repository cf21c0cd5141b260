"""From a template and its values to an answer: what every page has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from checkengine.dashboards.web import csrf
from checkengine.dashboards.web.auth import BROWSER_COOKIE, Auth
from checkengine.dashboards.web.people import Person, Role
from checkengine.dashboards.web.render import render

PACKAGE = "checkengine.dashboards.web"
PAGES = (
    ("/", "Overview"),
    ("/incidents", "Incidents"),
    ("/requests", "Requests"),
    ("/drift", "Drift"),
    ("/bundles", "Bundles"),
    ("/replicas", "Replicas"),
    ("/controls", "Controls"),
    ("/history", "History"),
)
NOTES = {
    "acknowledged": "Acknowledged.",
    "opened": "Opened again.",
    "muted": "Muted; it ends by itself.",
    "unmuted": "No longer muted.",
    "assigned": "Assigned.",
    "commented": "Comment added.",
    "closed": "Closed.",
    "saved": "View saved.",
    "removed": "View removed.",
    "ordered": "Ordered; each replica obeys within seconds, and tells when it has.",
    "erased": "Content erased.",
    "held": "Held: it does not expire.",
    "released": "No longer held.",
    "replay": "Replay started.",
    "cancelled": "Replay cancelled.",
    "nothing": "Nothing was selected.",
}
"""What a page says after a change. The address carries the key, so that nobody's words come in by a link."""


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    at: str
    person: Person | None
    csrf: Markup
    notes: tuple[str, ...]
    theme: str
    version: str
    lamp: str
    """good, warn or bad: of the whole service, on every page."""
    pages: tuple[tuple[str, str], ...] = PAGES


class Pages:
    def __init__(self, auth: Auth, lamp: Callable[[], str] = lambda: "") -> None:
        """`lamp` reads the catalog; it is asked once a page."""
        self.auth, self._lamp = auth, lamp

    def answer(
        self, request: Request, template: str, person: Person, title: str, at: str, values: dict[str, Any]
    ) -> HTMLResponse:
        theme, version = theme_of(request), static_version()
        page = Page(title, at, person, form_token(person), notes_of(request), theme, version, self._lamp())
        return self.sent(request, HTMLResponse(render(template, {**values, "page": page})))

    def for_stranger(
        self, request: Request, template: str, title: str, values: dict[str, Any], status: int = 200
    ) -> HTMLResponse:
        """To somebody who has not signed in."""
        key = self.auth.browser_key(request)
        field = form_token(Person("", Role.VIEWER, key))
        page = Page(title, "", None, field, (), theme_of(request), static_version(), "")
        return self.sent(request, HTMLResponse(render(template, {**values, "page": page}), status))

    def sent(self, request: Request, response: HTMLResponse) -> HTMLResponse:
        if (browser := getattr(request.state, "new_browser", None)) is not None:
            self.set_cookie(response, BROWSER_COOKIE, browser)
        return response

    def set_cookie(self, response: Response, name: str, value: str, seconds: float | None = None) -> None:
        age = None if seconds is None else int(seconds)
        response.set_cookie(name, value, max_age=age, path="/", secure=self.auth.secure, httponly=True, samesite="lax")


def form_token(person: Person) -> Markup:
    token = csrf.token_for(person) if person.csrf_key else ""
    return Markup(f'<input type="hidden" name="{csrf.FIELD}" value="{escape(token)}">')


def notes_of(request: Request) -> tuple[str, ...]:
    return tuple(NOTES[key] for key in request.query_params.getlist("note")[:1] if key in NOTES)


def theme_of(request: Request) -> str:
    chosen = request.cookies.get("checkengine_theme", "")
    return chosen if chosen in ("dark", "light") else ""


def go(address: str, note: str = "") -> RedirectResponse:
    """After a change. `address` is ours; parts of it are quoted already."""
    joint = "&" if "?" in address else "?"
    return RedirectResponse(f"{address}{joint}note={quote(note)}" if note else address, 303)


@cache
def static_version() -> str:
    """Changes with the files, so that a browser never mixes two releases."""
    digest = sha256()
    for file in sorted(files(PACKAGE).joinpath("static").iterdir(), key=lambda each: each.name):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
