"""Run-time switches: any guard off, on or re-armed, and the brake released, without a restart (design rule 4)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict

from checkengine.engine_shim.engine.server_arming import Arms, add_arming
from checkengine.engine_shim.engine.server_errors import ApiError
from checkengine.engine_shim.settings import ServerSettings
from checkengine.guards.hosts import host_name, is_loopback

GuardSwitch = Literal["disable", "enable", "rearm"]


class Controller(Arms, Protocol):
    """What the switches turn; called from the event loop, so it must return at once."""

    def guards(self) -> Sequence[Mapping[str, Any]]:
        """One mapping a guard, with at least `name`; JSON values only."""

    def switch_guard(self, name: str, action: GuardSwitch) -> None:
        """Raises KeyError for a guard that is not there."""

    def release_brake(self) -> None: ...


@runtime_checkable
class Audited(Protocol):
    """A Controller that also tells of audits."""

    def audits(self) -> Mapping[str, Any] | None:
        """Coverage, counters and convictions as JSON values; None where nothing is audited."""


class SwitchBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: GuardSwitch


def control_router(controller: Controller, settings: ServerSettings) -> APIRouter:
    def allowed(request: Request) -> None:
        require_control(request, settings)

    router = APIRouter(prefix="/checkengine", dependencies=[Depends(allowed)])

    @router.get("/guards")
    async def guards() -> dict[str, Any]:
        return {"guards": [dict(guard) for guard in controller.guards()]}

    @router.post("/guards/{name}")
    async def switch(name: str, body: SwitchBody) -> dict[str, Any]:
        try:
            controller.switch_guard(name, body.action)
        except KeyError as error:
            known = ", ".join(str(guard["name"]) for guard in controller.guards())
            raise ApiError(f"no guard named {name}; there are: {known}", status=404, code="no_such_guard") from error
        return {"guards": [dict(guard) for guard in controller.guards() if guard["name"] == name]}

    @router.post("/brake/release")
    async def release(_: Annotated[None, Depends(require_json)]) -> dict[str, Any]:
        controller.release_brake()
        return {"released": True}

    @router.get("/audit")
    async def audit() -> dict[str, Any]:
        found = controller.audits() if isinstance(controller, Audited) else None
        if found is None:
            raise ApiError("nothing is audited here; see [audit] in checkengine.toml", status=404, code="no_audits")
        return dict(found)

    add_arming(router, controller)
    return router


def require_control(request: Request, settings: ServerSettings) -> None:
    """With a token: the token. Without: a caller on this machine that no proxy and no web page stands in for."""
    if settings.control_token is not None:
        given = request.headers.get("authorization", "")
        if not secrets.compare_digest(given.encode(), f"Bearer {settings.control_token.get_secret_value()}".encode()):
            raise ApiError("give the control token as a bearer token", status=401, code="invalid_token")
        return
    peer = request.client.host if request.client else ""
    proxied = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "origin"))
    # A name that a page's own DNS points at this machine (DNS rebinding) would arrive in Host.
    if proxied or not is_loopback(peer) or not all(is_loopback(host_name(value)) for value in hosts_of(request)):
        raise ApiError(
            "the control endpoints answer to this machine only; set server.control_token to use them from elsewhere",
            status=403,
            code="loopback_only",
        )


async def require_json(request: Request) -> None:
    """A web page of another origin cannot send this type without asking first."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise ApiError("send Content-Type: application/json", status=415, code="unsupported_media_type")


def hosts_of(request: Request) -> list[str]:
    """Its Host headers themselves: of one that it cannot read `request.url` makes this server's own address."""
    return request.headers.getlist("host")
