"""Pages over either database: hostile addresses, many people at once, and a database that is away."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parent))

from seeded import ordinary_day

from checkengine.benchmarks.postgres import PostgresServer
from checkengine.dashboards.web.app import Given, build_app
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.replay.catalog import Catalog, marks
from checkengine.replay.catalog.models import IncidentRow

HOSTILE = (
    "%00", "a%00b", "%ED%A0%80", "%FF%FE", "'", "%27%20OR%201=1--", "1e999", "nan", "-1", "9" * 20, "-" + "9" * 30,
    "x" * 3000, "[]", "%0d%0aSet-Cookie:a=b",
)  # fmt: skip
FILTERS = ("status", "guard", "kind", "replica", "prefix", "severity", "assignee", "request", "time", "fingerprint")
ADDRESSES = (
    *(f"/incidents?{name}=%s" for name in (*FILTERS, "after")),
    "/incidents/%s", "/requests?id=%s", "/drift/%s", "/bundles/%s", "/bundles?before=%s", "/replicas/%s",
    "/controls/%s", "/controls?replica=%s", "/history?actor=%s", "/history?subject=%s", "/history?before=%s",
    "/?note=%s", "/sign-in?next=%s",
)  # fmt: skip
ORIGIN = {"origin": "http://127.0.0.1:8080"}
ACTIONS = ("acknowledge", "mute", "assign", "unmute", "comment", "close", "open")


def app_over(catalog: Catalog, folder: Path) -> FastAPI:
    return build_app(DashboardSettings(requests_per_second=100_000), Given(catalog, [folder]))


def client_of(app: FastAPI) -> TestClient:
    page = {"accept": "text/html"}
    address = ("127.0.0.1", 50000)
    return TestClient(
        app,
        "http://127.0.0.1:8080",
        client=address,
        headers=page,
        follow_redirects=False,
        raise_server_exceptions=False,
    )


def form_of(client: TestClient) -> dict[str, Any]:
    page = client.get("/incidents?status=all").text
    csrf = re.search(r'name="csrf" value="([^"]+)"', page)
    assert csrf is not None
    return {"csrf": csrf[1], "incident": re.findall(r'name="incident" value="([^"]+)"', page)}


def test_no_text_in_an_address_makes_a_page_fail(any_catalog: Catalog, tmp_path: Path) -> None:
    ordinary_day(any_catalog, time.time() - 60, requests=50)
    client = client_of(app_over(any_catalog, tmp_path))
    asked = [(address, text) for address in ADDRESSES for text in HOSTILE]
    failed = [each for each in asked if client.get(each[0] % each[1]).status_code >= 500]
    assert failed == []


def test_people_who_do_everything_at_once_in_any_order_never_wait_in_a_circle(
    any_catalog: Catalog, tmp_path: Path
) -> None:
    ordinary_day(any_catalog, time.time() - 60, requests=50)
    app = app_over(any_catalog, tmp_path)
    first = client_of(app)
    form, answers = form_of(first), []
    begin = threading.Barrier(6)

    def act(person: int) -> None:
        client = client_of(app)
        client.cookies = first.cookies
        incidents = form["incident"][:: 1 if person % 2 else -1]
        begin.wait()
        for action in ACTIONS[person:] + ACTIONS[:person]:
            fields = {"incident": incidents, "do": action, "assignee": f"p{person}", "text": "seen"}
            answers.append(client.post("/incidents", data={**form, **fields}, headers=ORIGIN).status_code)

    people = [threading.Thread(target=act, args=(person,)) for person in range(6)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert answers == [303] * (6 * len(ACTIONS))


def test_one_who_marks_waits_for_nobody_who_only_refers_to_an_incident(any_catalog: Catalog, tmp_path: Path) -> None:
    """A finding and a comment hold the incident that they name; a mark goes on beside them."""
    if any_catalog.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    ordinary_day(any_catalog, time.time() - 60, requests=50)
    somebody = marks.Actor("ann")
    with any_catalog.writing() as session:
        marks.comment(session, somebody, "inc-0", "seen", 1.0)
        with any_catalog.writing() as other:
            other.connection().exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            assert marks.mark(other, somebody, ["inc-0"], "closed", 2.0) == ["inc-0"]
    with any_catalog.reading() as session:
        assert session.get_one(IncidentRow, "inc-0").status == "closed"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One of its own: it is killed."""
    server = PostgresServer()
    yield server
    server.close()


def test_while_the_database_is_away_pages_say_so_and_they_come_back_with_it(
    server: PostgresServer, tmp_path: Path
) -> None:
    catalog = Catalog.open(server.url)
    ordinary_day(catalog, time.time() - 60, requests=50)
    client = client_of(app_over(catalog, tmp_path))
    form = form_of(client)
    server.kill()
    for address in ("/", "/incidents", "/controls", "/history"):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "The catalog does not answer" in answer.text
    assert client.get("/healthz").status_code == 200
    assert client.post("/incidents", data={**form, "do": "close"}, headers=ORIGIN).status_code == 503
    server.start()
    assert client.get("/incidents").status_code == 200
    catalog.close()
