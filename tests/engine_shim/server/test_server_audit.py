"""What a running server tells of its audits, and to whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from fastapi.testclient import TestClient

from checkengine.engine_shim.engine.server import Service, build_app

HERE = {"base_url": "http://127.0.0.1:8000", "client": ("127.0.0.1", 50000)}


class Quiet:
    """A controller that audits nothing."""


class Auditing:
    def __init__(self, found: Mapping[str, Any] | None) -> None:
        self.found = found

    def audits(self) -> Mapping[str, Any] | None:
        return self.found


def test_coverage_is_told_to_this_machine(service: Service) -> None:
    found = {"strata": {"page start": [3, 1, 0]}, "judged": 1}
    with TestClient(build_app(service, controller=Auditing(found)), **HERE) as client:
        assert client.get("/checkengine/audit").json() == found


def test_coverage_is_not_told_to_other_machines(service: Service) -> None:
    with TestClient(build_app(service, controller=Auditing({})), client=("192.0.2.7", 1)) as client:
        assert client.get("/checkengine/audit").status_code == 403


@pytest.mark.parametrize("controller", [Quiet(), Auditing(None)])
def test_a_server_that_does_not_audit_says_where_to_switch_it_on(service: Service, controller: Any) -> None:
    with TestClient(build_app(service, controller=controller), **HERE) as client:
        answer = client.get("/checkengine/audit")
        assert answer.status_code == 404
        assert "[audit]" in answer.json()["error"]["message"]
