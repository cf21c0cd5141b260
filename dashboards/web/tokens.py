"""The token file: who may sign in, in which role. Only hashes of tokens are kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

from checkengine.dashboards.web.people import Role
from checkengine.guards.errors import UserError

LINE = re.compile(r"(?P<name>[^\s#]{1,64})\s+(?P<role>\w+)\s+sha256:(?P<digest>[0-9a-f]{64})")
TOKEN_BYTES = 32
MOST_TOKEN = 512
"""Characters; what is longer is no token and not hashed."""


class TokenError(UserError):
    """The token file cannot be used."""


@dataclass(frozen=True, slots=True)
class TokenLine:
    name: str
    role: Role
    digest: str


class TokenFile:
    """Read again whenever it changes, so that a token is rotated without a restart: two lines of one name are two
    valid tokens. A file that cannot be read lets nobody in. TokenError at the start, too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._lines: tuple[TokenLine, ...] = ()
        self._refresh()

    def holder(self, token: str) -> TokenLine | None:
        """Whose token it is. Takes as long for one that is nobody's. TokenError where the file is unreadable now."""
        if not token or len(token) > MOST_TOKEN:
            return None
        given = digest_of(token)
        found = None
        for line in self._refresh():
            if hmac.compare_digest(line.digest, given):
                found = line
        return found

    def role(self, digest: str) -> Role | None:
        """Of the line with this digest. TokenError where the file is unreadable now."""
        return next((line.role for line in self._refresh() if line.digest == digest), None)

    def _refresh(self) -> tuple[TokenLine, ...]:
        with self._lock:
            try:
                state = self._path.stat()
                stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
                if stamp != self._stamp:
                    self._lines = parsed(self._path)
                    self._stamp = stamp
            except OSError as error:
                self._stamp, self._lines = None, ()
                raise TokenError(f"the token file {self._path} cannot be read: {error.strerror}") from None
            return self._lines


def parsed(path: Path) -> tuple[TokenLine, ...]:
    # A group may read it: Kubernetes and compose give a secret to a process by its group.
    if path.stat().st_mode & 0o027:
        raise TokenError(f"others may read the token file {path}: chmod 600 it")
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not (text := text.strip()) or text.startswith("#"):
            continue
        found = LINE.fullmatch(text)
        if found is None:
            # Never the line itself: somebody may have put the token there.
            raise TokenError(f"{path}, line {number}: not `NAME ROLE sha256:HEX`; dashboard --new-token prints one")
        try:
            lines.append(TokenLine(found["name"], Role.named(found["role"]), found["digest"]))
        except ValueError as error:
            raise TokenError(f"{path}, line {number}: {error}") from None
    if not lines:
        raise TokenError(f"the token file {path} names nobody; dashboard --new-token prints a line for it")
    return tuple(lines)


def digest_of(token: str) -> str:
    """Tokens are random and long: a slow hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token(name: str, role: str) -> tuple[str, str]:
    """The token, to be given to its holder, and the line for the file."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    line = f"{name} {Role.named(role).word} sha256:{digest_of(token)}"
    if LINE.fullmatch(line) is None:
        raise ValueError(f"{name!r} cannot be a name: up to 64 characters without spaces and #")
    return token, line
