"""A bundle that is held keeps its content, whoever presses the button."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parent))

from small_service import LOCAL, Service

from checkengine.dashboards.web.app import Given, build_app
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.guards.events import BundleWritten
from checkengine.replay.bundle import BundleReader, bundles_in, hold
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.models import BundleRow
from checkengine.replay.catalog.people import AuditRow


class Held:
    """The pages over one captured bundle."""

    def __init__(self, folder: Path) -> None:
        service = Service(folder)
        service.ask(24)
        service.heard(BundleWritten)
        service.close()
        (self.path,) = bundles_in(service.bundles)
        self.catalog = Catalog.open(service.database)
        app = build_app(DashboardSettings(requests_per_second=10_000), Given(self.catalog, [service.bundles]))
        self.client = TestClient(app, **LOCAL, headers={"accept": "text/html"}, follow_redirects=False)

    def post(self, address: str, **fields: str) -> Any:
        page = self.client.get("/bundles").text
        csrf = re.search(r'name="csrf" value="([^"]+)"', page) or re.search(
            r'name="csrf" value="([^"]+)"', self.client.get(f"/bundles/{self.path.name}").text
        )
        assert csrf is not None
        origin = {"origin": "http://127.0.0.1:8000"}
        return self.client.post(address, data={"csrf": csrf[1], "bundle": self.path.name, **fields}, headers=origin)

    def erase(self) -> Any:
        return self.post("/bundle/erase", sure="yes")

    @property
    def level(self) -> str:
        return BundleReader(self.path).level

    def actions(self) -> list[str]:
        with self.catalog.reading() as session:
            return [row.action for row in session.query(AuditRow)]


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    monkeypatch.chdir(tmp_path)
    made = Held(tmp_path)
    yield made
    made.catalog.close()


def test_a_held_bundle_is_not_erased_until_the_hold_is_ended(held: Held) -> None:
    assert held.post("/bundle/hold", reason="a lawyer asked").status_code == 303
    page = held.client.get(f"/bundles/{held.path.name}").text
    assert "end the hold first" in page
    assert "Erase the content" not in page
    refused = held.erase()
    assert refused.status_code == 409
    assert "a lawyer asked" in refused.text
    assert held.level == "full"
    with held.catalog.reading() as session:
        assert session.get_one(BundleRow, held.path.name).content == "full"
    assert held.post("/bundle/release").status_code == 303
    assert held.erase().status_code == 303
    assert held.level == "erased"
    assert held.actions() == ["hold", "release", "erase"]


def test_a_hold_from_the_command_line_counts_although_the_catalog_knows_nothing_of_it(held: Held) -> None:
    hold(held.path, "from a shell")
    assert held.erase().status_code == 409
    assert held.level == "full"
    assert held.actions() == []


def test_a_hold_that_only_the_catalog_knows_counts_too(held: Held) -> None:
    with held.catalog.writing() as session:
        session.get_one(BundleRow, held.path.name).held = True
    assert held.erase().status_code == 409
    assert held.level == "full"
