"""What every route asks first: who is it, may they, and did they mean it. A route without one of these is a public one;
a test walks all routes."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Depends
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from checkengine.dashboards.web import csrf
from checkengine.dashboards.web.auth import Auth, remote_of, too_many
from checkengine.dashboards.web.forms import Form, read_form
from checkengine.dashboards.web.people import Person, Role
from checkengine.dashboards.web.problems import Problem
from checkengine.dashboards.web.rate_limit import RateLimit

WRITE_COST = 4.0
"""Requests that change something count for so many that only look."""


@dataclass(frozen=True, slots=True)
class Acting:
    """Somebody who may, with what they sent."""

    person: Person
    form: Form
    remote: str


class Access:
    """Makes the dependencies of routes."""

    def __init__(self, auth: Auth, requests_per_second: float) -> None:
        self.auth = auth
        self._limit = RateLimit(requests_per_second, 10 * requests_per_second)

    def look(self, role: Role = Role.VIEWER) -> Person:
        async def looking(request: Request) -> Person:
            return await self._admit(request, role, 1.0)

        person: Person = Depends(looking)
        return person

    def act(self, role: Role) -> Acting:
        async def acting(request: Request) -> Acting:
            person = await self._admit(request, role, WRITE_COST)
            form = await read_form(request)
            csrf.check(person, form.one(csrf.FIELD), request.headers, self.auth.settings.public_url)
            return Acting(person, form, remote_of(request))

        actor: Acting = Depends(acting)
        return actor

    async def _admit(self, request: Request, role: Role, cost: float) -> Person:
        if (seconds := self._limit.wait(remote_of(request), cost)) > 0:
            raise too_many(seconds)
        person = await run_in_threadpool(self.auth.person, request)
        if person is None:
            raise Problem(401, "Sign in first", headers={"www-authenticate": "Bearer"})
        if not person.may(role):
            raise Problem(403, "You may not do that", f"It takes the role {role.word}; yours is {person.role.word}.")
        return person
