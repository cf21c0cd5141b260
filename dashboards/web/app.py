"""The dashboard as one app. What knows engines and tokenizers is given to it by the face."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, FastAPI
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles

from checkengine.dashboards.web import (
    bundles_page,
    controls_page,
    drift_page,
    history_page,
    incident,
    incidents,
    oidc_routes,
    overview,
    replicas_page,
    requests_page,
    sign_in,
)
from checkengine.dashboards.web.access import Access
from checkengine.dashboards.web.addresses import NoNul
from checkengine.dashboards.web.auth import Auth, remote_of
from checkengine.dashboards.web.bundle_places import BundlePlaces, places
from checkengine.dashboards.web.evidence import PiecesOf
from checkengine.dashboards.web.headers import SecurityHeaders
from checkengine.dashboards.web.hosts import HostCheck, names_of
from checkengine.dashboards.web.lamp import lamp
from checkengine.dashboards.web.live import Live
from checkengine.dashboards.web.oidc import Issuer, issuer_of
from checkengine.dashboards.web.pages import PACKAGE, Pages
from checkengine.dashboards.web.people import Person
from checkengine.dashboards.web.problems import Problem
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.guards.errors import UserError, first_line
from checkengine.guards.hosts import is_loopback
from checkengine.replay.catalog import Catalog

logger = logging.getLogger("checkengine.dashboard")
AWAY = "Serving goes on, and spools keep what engines tell. Load the page again in a moment; the log tells why."


@dataclass(frozen=True, slots=True)
class Given:
    """What the face gives."""

    catalog: Catalog
    bundles: Sequence[Path] = ()
    """Folders in which bundles of this machine lie."""
    pieces_of: PiecesOf = lambda environment: None
    clock: Callable[[], float] = time.time


@dataclass(slots=True)
class Parts:
    """What routers are made of."""

    pages: Pages
    access: Access
    catalog: Catalog
    clock: Callable[[], float]
    places: BundlePlaces
    pieces_of: PiecesOf
    issuer: Issuer | None = None
    live: Live = field(init=False)

    def __post_init__(self) -> None:
        self.live = Live(self.catalog, self.clock)


def build_app(settings: DashboardSettings, given: Given) -> FastAPI:
    """Raises NoSignInError where it would let everybody in from elsewhere, TokenError for an unusable token file,
    OidcError where a configured issuer cannot be asked for lack of its libraries."""
    auth = Auth(settings, given.catalog, given.clock)
    parts = Parts(
        Pages(auth, lamp(given.catalog, given.clock)),
        Access(auth, settings.requests_per_second),
        given.catalog,
        given.clock,
        places(given.bundles),
        given.pieces_of,
        issuer_of(settings, given.clock),
    )
    app = FastAPI(title="checkengine dashboard", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", Static(packages=[(PACKAGE, "static")]))
    app.state.live = parts.live
    for router in routers(parts):
        app.include_router(router)
    install_problems(app, parts.pages)
    loopback = is_loopback(settings.host)
    names = names_of(settings.public_url, settings.hosts)
    app.add_middleware(NoNul)
    app.add_middleware(HostCheck, loopback=loopback, names=names)
    app.add_middleware(SecurityHeaders, https=auth.secure)
    return app


def routers(parts: Parts) -> list[APIRouter]:
    common = (parts.pages, parts.access, parts.catalog, parts.clock)
    return [
        sign_in.router(parts.pages, parts.access, oidc_routes.issuer_name(parts.issuer) if parts.issuer else ""),
        *([oidc_routes.router(parts.pages, parts.catalog, parts.clock, parts.issuer)] if parts.issuer else []),
        overview.router(*common),
        incidents.router(*common),
        incident.router(*common, parts.places, parts.pieces_of),
        bundles_page.router(*common, parts.places),
        *(page.router(*common) for page in (requests_page, drift_page, replicas_page, controls_page, history_page)),
        plain_router(parts),
    ]


def plain_router(parts: Parts) -> APIRouter:
    """Addresses that are no pages."""
    made = APIRouter()
    looking = parts.access.look()

    @made.get("/live")
    async def live(request: Request, person: Person = looking) -> Response:
        stream = await parts.live.events(f"{person.name} {remote_of(request)}")
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    @made.get("/healthz")
    def health() -> Response:
        """Public: tells only whether it runs; whether the catalog does is none of a stranger's business."""
        return JSONResponse({"status": "ok"})

    return made


class Static(StaticFiles):
    """Our few files, and the stylesheet that reports share; addresses carry their version, so they may be kept."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shared = files("checkengine.replay.report").joinpath("parts.css").read_bytes()

    async def get_response(self, path: str, scope: Any) -> Response:
        if path == "parts.css":
            response = Response(self._shared, media_type="text/css")
        else:
            response = await super().get_response(path, scope)
        response.headers["cache-control"] = "public, max-age=86400"
        return response


def install_problems(app: FastAPI, pages: Pages) -> None:
    def shown(request: Request, problem: Problem) -> Response:
        if problem.status == 401 and wants_page(request):
            target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"/sign-in?next={quote(target, safe='')}", 303)
        if not wants_page(request):
            told = {"error": problem.title, "detail": problem.detail}
            return JSONResponse(told, problem.status, headers=problem.headers)
        values = {"title": problem.title, "detail": problem.detail}
        response = pages.for_stranger(request, "problem.html", problem.title, values, problem.status)
        response.headers.update(problem.headers)
        return response

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Response:
        return shown(request, error)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        titles = {404: "There is no such page", 405: "That is not how this page is used"}
        return shown(request, Problem(error.status_code, titles.get(error.status_code, "That cannot be done")))

    @app.exception_handler(UserError)
    async def user(request: Request, error: UserError) -> Response:
        return shown(request, Problem(409, "That cannot be done now", str(error)))

    @app.exception_handler(OperationalError)
    @app.exception_handler(InterfaceError)
    @app.exception_handler(TimeoutError)
    async def away(request: Request, error: Exception) -> Response:
        logger.error("the catalog does not answer: %s", first_line(error))
        problem = Problem(503, "The catalog does not answer", AWAY, {"retry-after": "5"})
        return shown(request, problem)

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        logger.error("a page failed", exc_info=error)
        return shown(request, Problem(500, "This page failed", "Its log tells why; serving goes on."))


def wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "") and "authorization" not in request.headers
