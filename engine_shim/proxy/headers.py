"""Headers, as a proxy must treat them: what concerns one connection stays on it (RFC 9110 §7.6.1)."""

from __future__ import annotations

from collections.abc import Sequence

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
FORWARDED = b"x-forwarded-for"


def header(headers: Headers, name: bytes) -> bytes:
    """The first of that name; empty where there is none."""
    return next((value for key, value in headers if key == name), b"")


def named_in_connection(headers: Headers) -> frozenset[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def to_upstream(
    headers: Headers, *, client: str, token: str | None = None, encoded: bool = False
) -> list[tuple[bytes, bytes]]:
    """`token` replaces the client's credentials; `encoded` lets the upstream compress its answer."""
    dropped = HOP_BY_HOP | named_in_connection(headers) | OF_THE_REQUEST
    if token is not None:
        dropped = dropped | {b"authorization"}
    if encoded:
        dropped = dropped - {b"accept-encoding"}
    kept = [(name, value) for name, value in headers if name not in dropped]
    if not encoded:
        kept.append((b"accept-encoding", b"identity"))
    if token is not None:
        kept.append((b"authorization", f"Bearer {token}".encode()))
    return [*_forwarded(kept, client.encode()), (b"via", VIA)]


def _forwarded(headers: list[tuple[bytes, bytes]], client: bytes) -> list[tuple[bytes, bytes]]:
    if not client:
        return headers
    before = [value for name, value in headers if name == FORWARDED]
    others = [(name, value) for name, value in headers if name != FORWARDED]
    return [*others, (FORWARDED, b", ".join([*before, client]))]


def to_client(headers: Headers, *, without_length: bool = False) -> list[tuple[bytes, bytes]]:
    """`without_length`: the body may come out with another length than it had, or there is none of that length."""
    dropped = HOP_BY_HOP | named_in_connection(headers)
    if without_length:
        dropped = dropped | {b"content-length"}
    return [(name, value) for name, value in headers if name not in dropped]
