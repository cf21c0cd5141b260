"""The admin addresses as an OpenAPI document, which they serve themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ERROR_OF = {
    400: "what was asked for cannot be done",
    401: "no control token, or a wrong one",
    403: "not from this machine",
    404: "no guard of that name",
    405: "this address has another method",
    413: "the body is too large",
    415: "the body is no application/json",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "code": {"type": "string"}},
        }
    },
}
_GUARD = {
    "type": "object",
    "required": ["name", "active", "reason"],
    "properties": {"name": {"type": "string"}, "active": {"type": "boolean"}, "reason": {"type": "string"}},
}
_UPSTREAM = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
_HEALTH = {
    "type": "object",
    "required": ["draining", "running", "upstreams"],
    "properties": {
        "draining": {"type": "boolean"},
        "running": {"type": "integer"},
        "upstreams": {"type": "array", "items": {"type": "string"}},
    },
}


def _list(name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [name], "properties": {name: {"type": "array", "items": item}}}


def _answer(description: str, schema: Mapping[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): _answer(ERROR_OF[status], _ERROR) for status in statuses}


def _name(what: str) -> dict[str, Any]:
    return {"name": "name", "in": "path", "required": True, "description": what, "schema": {"type": "string"}}


def _switch(what: str, actions: Sequence[str], found: Mapping[str, Any], *errors: int) -> dict[str, Any]:
    asked = {
        "type": "object",
        "required": ["action"],
        "properties": {"action": {"enum": list(actions)}, "reason": {"type": "string", "maxLength": 512}},
    }
    return {
        "parameters": [_name(f"Of the {what}.")],
        "post": {
            "summary": f"Switch a {what}.",
            "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
            "responses": {"200": _answer("As it stands now.", found), **_errors(400, 401, 403, *errors, 413, 415)},
        },
    }


_GUARDS, _UPSTREAMS = _list("guards", _GUARD), _list("upstreams", _UPSTREAM)
_LISTED = _errors(401, 403)
ADMIN: Mapping[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "checkengine proxy, admin addresses", "version": "1"},
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "paths": {
        "/metrics": {
            "get": {
                "summary": "For Prometheus.",
                "responses": {"200": _answer("Text or OpenMetrics.", {"type": "string"}, "text/*")},
            }
        },
        "/healthz": {
            "get": {
                "summary": "Whether it serves, and how much.",
                "responses": {"200": _answer("It serves.", _HEALTH), "503": _answer("It drains.", _HEALTH)},
            }
        },
        "/checkengine/guards": {
            "get": {"summary": "Every guard.", "responses": {"200": _answer("All.", _GUARDS), **_LISTED}}
        },
        "/checkengine/guards/{name}": _switch("guard", ("disable", "enable", "rearm"), _GUARDS, 404),
        "/checkengine/upstreams": {
            "get": {"summary": "Every upstream.", "responses": {"200": _answer("All.", _UPSTREAMS), **_LISTED}}
        },
        "/checkengine/upstreams/{name}": _switch("upstream", ("convict", "release"), _UPSTREAMS),
    },
}
