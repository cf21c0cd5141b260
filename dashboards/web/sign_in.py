"""Sign in by token, sign out."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from checkengine.dashboards.web import csrf
from checkengine.dashboards.web.access import Access, Acting
from checkengine.dashboards.web.auth import local_path, remote_of
from checkengine.dashboards.web.forms import read_form
from checkengine.dashboards.web.pages import Pages
from checkengine.dashboards.web.people import Person, Role
from checkengine.dashboards.web.sessions import Sessions


def router(pages: Pages, access: Access, issuer: str = "") -> APIRouter:
    auth = pages.auth
    made = APIRouter()
    leaving = access.act(Role.VIEWER)

    def form_page(request: Request, target: str, failed: str = "", status: int = 200) -> Response:
        values = {"next": target, "failed": failed, "by_token": auth.tokens is not None}
        values |= {"by_oidc": bool(issuer), "issuer": issuer}
        return pages.for_stranger(request, "sign_in.html", "Sign in", values, status)

    @made.get("/sign-in")
    async def show(request: Request, next: str = "/") -> Response:
        return form_page(request, local_path(next))

    @made.post("/sign-in")
    async def sign_in(request: Request) -> Response:
        form = await read_form(request)
        stranger = Person("", Role.VIEWER, auth.browser_key(request))
        csrf.check(stranger, form.one(csrf.FIELD), request.headers, auth.settings.public_url)
        target = local_path(form.one("next"))
        holder = await run_in_threadpool(auth.try_token, form.one("token").strip(), remote_of(request))
        if holder is None:
            return form_page(request, target, "That token lets nobody in.", 401)
        return await run_in_threadpool(begin, pages, holder.name, holder.role, target, token=holder.digest)

    @made.post("/sign-out")
    def sign_out(request: Request, acting: Acting = leaving) -> Response:
        auth.sessions.end(request.cookies.get(auth.session_cookie, ""))
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(auth.session_cookie, path="/", secure=auth.secure, httponly=True, samesite="lax")
        return response

    return made


def begin(pages: Pages, name: str, role: Role, target: str, subject: str = "", token: str = "") -> Response:
    """A session and its cookie: always a new one, so that nobody can have planted it."""
    sessions: Sessions = pages.auth.sessions
    try:
        cookie = sessions.begin(name, role, subject, token)
    except PermissionError:
        return RedirectResponse("/sign-in", 303)
    response = RedirectResponse(target, 303)
    pages.set_cookie(response, pages.auth.session_cookie, cookie, 3600 * sessions.hours)
    return response
