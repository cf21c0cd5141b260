"""Sign-ins, kept in the catalog so that several dashboards share them. The cookie itself is never stored."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from checkengine.dashboards.web.people import Person, Role
from checkengine.dashboards.web.tokens import digest_of
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.people import SessionRow, UserRow

COOKIE_BYTES = 32
TOUCH_SECONDS = 60.0
"""So seldom is it noted that a session is in use."""
IDLE_SHARE = 0.25
"""Of a session's hours without a request, after which it is over."""


@dataclass(slots=True)
class Sessions:
    catalog: Catalog
    hours: float
    clock: Callable[[], float]
    token_role: Callable[[str], Role | None] = lambda digest: None
    """What a token lets its holder do now, by its digest; None for one that is not valid any more."""

    def begin(self, name: str, role: Role, subject: str = "", token: str = "") -> str:
        """The cookie of a new session; `token` is the digest of the one that it was begun with. PermissionError for a
        user who was disabled."""
        now, cookie = self.clock(), secrets.token_urlsafe(COOKIE_BYTES)
        with self.catalog.writing() as session:
            session.execute(sa.delete(SessionRow).where(SessionRow.expires < now))
            user = known_user(session, name, role, subject, now)
            if user.disabled is not None:
                raise PermissionError(name)
            row = SessionRow(id=digest_of(cookie), user_id=user.id, name=name, role=role.word, data={})
            if token:
                row.data = {"token": token}
            row.csrf, row.created, row.last_seen, row.expires = secrets.token_hex(32), now, now, now + 3600 * self.hours
            session.add(row)
        return cookie

    def person(self, cookie: str) -> Person | None:
        """None for a cookie of no session, or of one that is over, or whose user was disabled or token withdrawn. The
        role is what the token says now."""
        if not cookie or len(cookie) > 4 * COOKIE_BYTES:
            return None
        now, identifier = self.clock(), digest_of(cookie)
        with self.catalog.reading() as session:
            row = session.get(SessionRow, identifier)
            user = session.get(UserRow, row.user_id) if row is not None and row.user_id is not None else None
        idle = 3600 * self.hours * IDLE_SHARE
        if row is None or now >= row.expires or now - row.last_seen > idle or user is None or user.disabled is not None:
            return None
        if now - row.last_seen > TOUCH_SECONDS:
            with self.catalog.writing() as session:
                session.execute(sa.update(SessionRow).where(SessionRow.id == identifier).values(last_seen=now))
        role = self.token_role(digest) if (digest := row.data.get("token")) else Role.named(row.role)
        return Person(row.name, role, row.csrf, signed_in=True) if role is not None else None

    def end(self, cookie: str) -> None:
        with self.catalog.writing() as session:
            session.execute(sa.delete(SessionRow).where(SessionRow.id == digest_of(cookie)))


def known_user(session: sa.orm.Session, name: str, role: Role, subject: str, now: float) -> UserRow:
    """The user's row, made at the first sign-in; its role is that of the last one."""
    user = session.scalar(sa.select(UserRow).where(UserRow.name == name))
    if user is None:
        user = UserRow(name=name, role=role.word, subject=subject, created=now)
        session.add(user)
    user.role, user.subject = role.word, subject
    session.flush()
    return user
