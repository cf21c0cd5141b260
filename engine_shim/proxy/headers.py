"""Headers, as a proxy must treat them: what concerns one connection stays on it (RFC 9110 §7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case, in the order in which they came."""

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
OF_THE_REQUEST = frozenset({b"host", b"content-length", b"expect", b"accept-encoding"})
"""Written anew: host and length by the client library; an encoded answer could not be read by guards."""
VIA = b"1.1 checkengine"


def header(headers: Headers, name: bytes) -> bytes:
    """The first of that name; empty where there is none."""
    return next((value for key, value in headers if key == name), b"")


def named_in_connection(headers: Headers) -> frozenset[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def to_upstream(
    headers: Headers, *, client: str, token: str | None = None, encoded: bool = False
) -> list[tuple[str, str]]:
    """`token` replaces the client's credentials; `encoded` lets the upstream compress its answer."""
    dropped = HOP_BY_HOP | named_in_connection(headers) | OF_THE_REQUEST
    if token is not None:
        dropped = dropped | {b"authorization"}
    if encoded:
        dropped = dropped - {b"accept-encoding"}
    kept = [(as_text(name), as_text(value)) for name, value in headers if name not in dropped]
    if not encoded:
        kept.append(("accept-encoding", "identity"))
    if token is not None:
        kept.append(("authorization", f"Bearer {token}"))
    return [*_forwarded(kept, client), ("via", VIA.decode())]


def _forwarded(headers: list[tuple[str, str]], client: str) -> list[tuple[str, str]]:
    if not client:
        return headers
    before = [value for name, value in headers if name == "x-forwarded-for"]
    others = [(name, value) for name, value in headers if name != "x-forwarded-for"]
    return [*others, ("x-forwarded-for", ", ".join([*before, client]))]


def to_client(headers: Iterable[tuple[bytes, bytes]], *, without_length: bool = False) -> list[tuple[bytes, bytes]]:
    """`without_length`: the body may come out with another length than it had."""
    lowered = [(name.lower(), value) for name, value in headers]
    dropped = HOP_BY_HOP | named_in_connection(lowered)
    if without_length:
        dropped = dropped | {b"content-length"}
    return [(name, value) for name, value in lowered if name not in dropped]


def as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
