"""What the proxy itself answers, in OpenAI's shape."""

from __future__ import annotations

import json
from dataclasses import dataclass

JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class ProxyError(Exception):
    """An answer of the proxy's own. The message is for the client: no address, no content."""

    status: int
    message: str
    code: str
    kind: str = "server_error"
    retry_after: int | None = None

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": None, "code": self.code}
        return json.dumps({"error": error}, separators=(",", ":")).encode()

    def event(self) -> bytes:
        """In the middle of a stream: the status line is sent, so that only another event can tell."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        length = (b"content-length", str(len(self.body())).encode())
        wait = [(b"retry-after", str(self.retry_after).encode())] if self.retry_after is not None else []
        return [JSON, length, *wait]


INVALID = "invalid_request_error"


def too_large(limit: int) -> ProxyError:
    return ProxyError(413, f"the body has more than {limit} bytes (proxy.max_body_bytes)", "body_too_large", INVALID)


def not_allowed() -> ProxyError:
    return ProxyError(404, "no such address here (proxy.allow)", "not_found", INVALID)


def bad_method() -> ProxyError:
    return ProxyError(405, "this method is not passed on", "method_not_allowed", INVALID)


def bad_path() -> ProxyError:
    return ProxyError(400, "the request's target is no path", "bad_request", INVALID)


def busy() -> ProxyError:
    message = "too many requests are running; try again later"
    return ProxyError(429, message, "rate_limit_exceeded", "rate_limit_error", retry_after=1)


def exhausted() -> ProxyError:
    return ProxyError(503, "the proxy has no sockets left; try again later", "exhausted", retry_after=1)


def draining() -> ProxyError:
    return ProxyError(503, "the proxy is shutting down; try again", "not_accepting", retry_after=1)


def no_upstream(reason: str) -> ProxyError:
    return ProxyError(503, reason, "no_upstream", retry_after=1)


def unreachable() -> ProxyError:
    return ProxyError(502, "the server behind this proxy cannot be reached", "upstream_unreachable")


def broken() -> ProxyError:
    return ProxyError(502, "the server behind this proxy broke off its answer", "upstream_broken")


def garbage() -> ProxyError:
    return ProxyError(502, "the server behind this proxy answered what is not HTTP", "upstream_invalid")


def empty_vectors() -> ProxyError:
    return ProxyError(502, "the server behind this proxy answered vectors that carry nothing", "embedding_invalid")


def stalled() -> ProxyError:
    return ProxyError(504, "the server behind this proxy has been silent for too long", "upstream_timeout")


def client_too_slow() -> ProxyError:
    return ProxyError(408, "the request's body did not come in time", "request_timeout", INVALID)


def head_too_slow() -> ProxyError:
    return ProxyError(408, "the request's head did not come in time (proxy.client_seconds)", "request_timeout", INVALID)


def internal() -> ProxyError:
    return ProxyError(500, "internal error of the proxy; see its log", "internal_error")
