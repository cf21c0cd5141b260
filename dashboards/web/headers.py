"""Headers of every answer: what a page may load, who may frame it, and that nobody keeps it."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types checkengine",
    )
)
"""No inline script or style, no eval, no foreign address: hostile text that slips through escaping does nothing."""

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}


class SecurityHeaders:
    """Sets each header unless the answer sets it itself."""

    def __init__(self, app: ASGIApp, *, https: bool = False) -> None:
        self.app = app
        told = HEADERS | ({"strict-transport-security": "max-age=31536000"} if https else {})
        self._headers = [(name.encode(), value.encode()) for name, value in told.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in self._headers if each[0] not in there)]
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)
