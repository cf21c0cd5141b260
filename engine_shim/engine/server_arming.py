"""Armed captures over HTTP: list, arm and disarm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from checkengine.engine_shim.engine.server_errors import ApiError
from checkengine.guards.errors import UserError


class Arms(Protocol):
    """What arms and disarms; called from the server's thread pool, so it may write to the disk."""

    def armed(self) -> Mapping[str, Any]:
        """`replica` and `armed`, one mapping a condition with its `id`; JSON values only."""

    def arm(self, when: str, *, level: str, seconds: float, most: int) -> Mapping[str, Any]:
        """Capture steps that meet the condition, for so long. Raises UserError where it cannot."""

    def disarm(self, identifier: str) -> None:
        """Raises KeyError for a condition that is not there, UserError where it cannot."""


class ArmBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    when: str = Field(max_length=500)
    level: str = "L3"
    seconds: float = Field(3600.0, gt=0, allow_inf_nan=False)
    most: int = Field(3, ge=1)


def add_arming(router: APIRouter, controller: Arms) -> None:
    """Not async: the access log is written to the disk."""

    @router.get("/arm")
    def armed() -> dict[str, Any]:
        return dict(controller.armed())

    @router.post("/arm")
    def arm(body: ArmBody) -> dict[str, Any]:
        try:
            return dict(controller.arm(body.when, level=body.level, seconds=body.seconds, most=body.most))
        except UserError as error:
            raise ApiError(str(error), param="when", code="cannot_arm") from error

    @router.delete("/arm/{identifier}")
    def disarm(identifier: str) -> dict[str, Any]:
        try:
            controller.disarm(identifier)
        except KeyError as error:
            raise ApiError(f"nothing armed is named {identifier}", status=404, code="not_armed") from error
        except UserError as error:
            raise ApiError(str(error), code="cannot_disarm") from error
        return {"disarmed": identifier}
