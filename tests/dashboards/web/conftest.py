"""Pages over a catalog of their own, without a socket."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parent))

from checkengine.dashboards.web.app import Given, build_app
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.dashboards.web.tokens import new_token
from checkengine.replay.catalog import Catalog


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog.open(tmp_path / "catalog.db")
    yield catalog
    catalog.close()


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock(1_790_000_000.0)


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    folder = tmp_path / "bundles"
    folder.mkdir()
    return folder


MakeClient = Callable[..., TestClient]


@pytest.fixture
def make_client(catalog: Catalog, clock: Clock, bundles: Path) -> MakeClient:
    """Keywords are settings of the dashboard."""

    def make(**settings: Any) -> TestClient:
        app = build_app(DashboardSettings(**settings), Given(catalog, [bundles], clock=clock))
        page = {"accept": "text/html"}
        address = ("127.0.0.1", 50000)
        return TestClient(app, "http://127.0.0.1:8080", client=address, headers=page, follow_redirects=False)

    return make


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    """Of somebody at this machine."""
    return make_client(requests_per_second=10_000)


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """A token for each role; `file` is the token file."""
    found, lines = {}, []
    for role in ("viewer", "operator", "admin"):
        found[role], line = new_token(f"{role}-1", role)
        lines.append(line)
    file = tmp_path / "tokens"
    file.write_text("# who may look\n" + "\n".join(lines) + "\n")
    file.chmod(0o600)
    return {**found, "file": str(file)}
