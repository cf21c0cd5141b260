"""That a change was asked for on one of our own pages: a token in the form, keyed to the session, and where the browser
says it comes from."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from checkengine.dashboards.web.people import Person
from checkengine.dashboards.web.problems import Problem

FIELD = "csrf"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def token_for(person: Person) -> str:
    """What our forms carry. It tells nothing about the session's own secret."""
    return hmac.new(person.csrf_key.encode(), b"checkengine form", hashlib.sha256).hexdigest()


def check(person: Person, given: str, headers: Headers, public_url: str | None = None) -> None:
    """Problem 403 where the request may come from a stranger's page. A bearer token is proof enough: no page can send
    one."""
    if not person.csrf_key:
        return
    if not same_site(headers, public_url) or not hmac.compare_digest(token_for(person).encode(), given.encode()):
        raise Problem(403, "That did not come from this page", "The page may be old: reload it and try again.")


def same_site(headers: Headers, public_url: str | None) -> bool:
    """As the browser tells it; what tells nothing (curl) must still know the token."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    allowed = {headers.get("host", "").lower()}
    if public_url:
        allowed.add(urlsplit(public_url).netloc.lower())
    return urlsplit(origin).netloc.lower() in allowed
