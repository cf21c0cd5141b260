"""One test for each kind of published vulnerability in tools of this sort."""

from __future__ import annotations

import ast
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from pages_read import SCRIPTS, Seen
from seeded import HOSTILE, LONG, hostile_everywhere, ordinary_day

import checkengine.dashboards.web as web
from checkengine.dashboards.web.bundle_places import places
from checkengine.dashboards.web.rate_limit import MOST_CLIENTS, RateLimit
from checkengine.dashboards.web.render import templates
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.models import BundleRow, IncidentRow
from checkengine.replay.catalog.people import AuditRow

SOURCES = sorted(Path(str(web.__path__[0])).glob("*.py"))
INJECTION = "' OR 1=1; DROP TABLE incidents; --"
PAGES = ("/", "/incidents?status=all", "/requests", "/drift", "/bundles", "/replicas", "/controls", "/history")
PUBLIC = {"/sign-in", "/healthz"}


def every_page(client: TestClient, incident: str, text: str = "") -> dict[str, str]:
    """Address to HTML, with the pages of one incident, bundle, replica, series, guard and request that have `text` for
    a name."""
    name, whole = quote(incident, safe=""), quote((text or incident)[:250], safe="")
    series = quote((text or incident)[:122], safe="")  # a kind has 128 characters
    more = [
        f"/incidents/{name}",
        f"/requests?id={whole}",
        f"/controls/{whole}",
        f"/replicas/{whole}",
        f"/drift/{series}",
    ]
    more += [
        f"/incidents?status=all&guard={whole}",
        f"/history?actor={quote((text or incident)[:128])}",
        f"/bundles/{whole}",
    ]
    return {address: client.get(address).text for address in (*PAGES, *more)}


def test_hostile_text_in_every_field_is_shown_as_text_and_nothing_of_it_runs(
    client: TestClient, catalog: Catalog, clock: Any
) -> None:
    incident = hostile_everywhere(catalog, clock.now)
    for address, html in every_page(client, incident, HOSTILE).items():
        seen = Seen(html)
        assert all(SCRIPTS.fullmatch(script) for script in seen.scripts), address
        assert not seen.tags & {"img", "iframe", "object", "embed", "style", "base"}, address
        assert not [each for each in seen.attributes if each[1].startswith("on") or each[1] == "style"], address
        assert not [link for link in seen.links if not re.match(r"[/#?]", link)], address
        shown = [seen.text, *(value for _, name, value in seen.attributes if name != "value")]
        assert not re.search("[\u202e\u2066\u200b\ufeff\x1b]", "".join(shown)), address
        assert "window.hacked" in seen.text, address


def test_a_name_that_is_a_template_is_not_evaluated(client: TestClient, catalog: Catalog, clock: Any) -> None:
    name = "{{71*97}}{% raw %}${71*97}"
    hostile_everywhere(catalog, clock.now, name)
    for html in every_page(client, name).values():
        assert "6887" not in Seen(html).text
    assert "{{71*97}}" in client.get("/replicas").text


def test_text_of_a_megabyte_in_every_field_makes_no_large_page(
    client: TestClient, catalog: Catalog, clock: Any
) -> None:
    incident = hostile_everywhere(catalog, clock.now, LONG)
    for address, html in every_page(client, incident).items():
        assert len(html) < 200_000, address


def test_every_template_escapes_and_none_marks_text_as_safe() -> None:
    environment = templates()
    assert environment.autoescape is True
    loader = environment.loader
    assert loader is not None
    for name in loader.list_templates():
        source = loader.get_source(environment, name)[0]
        assert "|safe" not in source.replace(" ", ""), name
        assert "{% autoescape" not in source, name


def test_no_route_answers_a_stranger_but_the_sign_in(make_client: Any, tokens: dict[str, str]) -> None:
    """Auth hangs on the route itself, so neither the address's spelling nor a header decides it."""
    client = make_client(sign_in=True, token_file=tokens["file"], requests_per_second=10_000)
    walked = 0
    for path, methods in client.app.openapi()["paths"].items():
        for method in methods:
            address = re.sub(r"\{[^}]+\}", "x", path)
            answer = client.request(method, address, headers={"accept": "application/json"})
            walked += 1
            expected = (200, 403) if path in PUBLIC else (401,)
            assert answer.status_code in expected, (method, address)
    assert walked > 25


@pytest.mark.parametrize(
    "spelling", ["//incidents", "/incidents/", "/%69ncidents", "/sign-in/../incidents", "/INCIDENTS"]
)
def test_another_spelling_of_an_address_lets_nobody_in(make_client: Any, tokens: dict[str, str], spelling: str) -> None:
    client = make_client(sign_in=True, token_file=tokens["file"])
    assert "acknowledged" not in client.get(spelling).text
    assert client.get(spelling, headers={"x-original-url": "/healthz", "x-rewrite-url": "/healthz"}).status_code != 200


def test_sql_in_a_header_an_id_or_a_filter_is_only_text(
    make_client: Any, tokens: dict[str, str], catalog: Catalog, clock: Any
) -> None:
    ordinary_day(catalog, clock.now, requests=20)
    client = make_client(sign_in=True, token_file=tokens["file"], requests_per_second=10_000)
    for header in (INJECTION, f"Bearer {INJECTION}", "Bearer \x00", "Basic YTpi", "Bearer " + "x" * 100_000):
        assert client.get("/", headers={"authorization": header, "accept": "*/*"}).status_code == 401
    signed = {"authorization": f"Bearer {tokens['admin']}"}
    name = quote(INJECTION, safe="")
    for address in (f"/incidents?guard={name}&request={name}", f"/requests?id={name}", f"/history?actor={name}"):
        assert client.get(address, headers=signed).status_code == 200
    assert client.get(f"/incidents?after={name}", headers=signed).status_code == 400
    for address in (f"/incidents/{name}", f"/bundles/{name}", f"/replicas/{name}"):
        assert client.get(address, headers=signed).status_code == 404
    with catalog.reading() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(IncidentRow)) == 5


@pytest.mark.parametrize(
    "name",
    ["..", "../../etc", "..%2f..%2fetc", "/etc", "a/../../etc", ".", "", "a\\..\\b", "\x00", "…/…", "-rf", "a" * 300],
)
def test_an_id_never_becomes_a_path_outside_of_the_folder_of_bundles(
    client: TestClient, bundles: Path, name: str
) -> None:
    row = BundleRow(id=name, incident_id="i", path="/etc", time=0.0)
    assert places([bundles]).find(row) is None
    if name not in ("", ".", ".."):  # a client resolves these itself
        assert client.get(f"/bundles/{quote(name, safe='')}").status_code == 404
        assert client.get(f"/static/{quote(name, safe='')}").status_code in (404, 400)


def test_a_link_in_the_folder_of_bundles_leads_nowhere(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (bundles / "b1").symlink_to(tmp_path / "elsewhere")
    assert places([bundles]).find(BundleRow(id="b1", incident_id="i", path="x", time=0.0)) is None


def test_the_path_that_an_engine_told_is_never_followed(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    row = BundleRow(id="b1", incident_id="i", path=str(tmp_path / "secret"), time=0.0)
    assert places([bundles]).find(row) is None


def test_no_field_makes_the_dashboard_connect_to_anybody(
    client: TestClient, catalog: Catalog, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident = hostile_everywhere(catalog, clock.now, "http://169.254.169.254/latest/meta-data/")

    def refused(*arguments: Any) -> None:
        raise AssertionError(f"connects to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refused)
    pages = every_page(client, incident)
    assert len(pages) > 10
    csrf = Seen(pages["/controls"]).field("csrf")
    for address in ("/controls", "/incidents", "/replays", "/bundle/erase", "/views"):
        fields = {"csrf": csrf, "url": "http://10.0.0.1/", "replica": "http://10.0.0.1/", "bundle": "http://10.0.0.1/"}
        assert client.post(address, data=fields).status_code < 500


def test_nothing_is_unpickled_evaluated_or_run_by_a_shell_in_the_dashboard() -> None:
    banned = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "subprocess", "ctypes", "yaml"}
    calls = {"eval", "exec", "__import__", "system", "popen", "from_string"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not banned & {alias.name.partition(".")[0] for alias in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in banned, path
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                assert name not in calls, (path, name)


def test_no_check_of_the_dashboard_is_an_assertion_which_an_optimised_python_leaves_out() -> None:
    for path in SOURCES:
        assert not [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)], path


def test_no_sql_is_made_of_text() -> None:
    for path in SOURCES:
        source = path.read_text()
        assert "sa.text(" not in source, path
        assert "exec_driver_sql" not in source, path


def test_a_form_of_megabytes_or_of_thousands_of_fields_is_refused(client: TestClient) -> None:
    csrf = Seen(client.get("/controls").text).field("csrf")
    assert client.post("/controls", data={"csrf": csrf, "name": "x" * (1 << 20)}).status_code == 413
    many = "&".join(f"incident={number}" for number in range(2000))
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/incidents", content=f"csrf={csrf}&{many}", headers=kind).status_code == 400
    upload = {"content-type": "multipart/form-data; boundary=x"}
    assert client.post("/controls", content=b"--x\r\n", headers=upload).status_code == 415


def test_a_million_clients_fill_no_memory() -> None:
    limit = RateLimit(1.0, 1.0, clock=lambda: 0.0)
    for number in range(MOST_CLIENTS + 5000):
        limit.wait(str(number))
    assert len(limit._buckets) == MOST_CLIENTS


def test_a_line_break_in_a_name_makes_no_second_line_in_the_history(
    client: TestClient, catalog: Catalog, clock: Any
) -> None:
    ordinary_day(catalog, clock.now, requests=10)
    csrf = Seen(client.get("/incidents").text).field("csrf")
    fields = {"csrf": csrf, "incident": "inc-0", "do": "assign", "assignee": "eve\n2026-01-01 admin erase all"}
    assert client.post("/incidents", data=fields).status_code == 303
    with catalog.reading() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(AuditRow)) == 1
    assert "eve\\n2026-01-01" in client.get("/incidents").text


def test_no_page_names_a_foreign_address(client: TestClient, catalog: Catalog, clock: Any) -> None:
    """Air-gapped: no font, no script and no image of somebody else's."""
    incident = ordinary_day(catalog, clock.now, requests=20)
    for address in (*PAGES, f"/incidents/{incident}", "/static/style.css", "/static/page.js", "/static/parts.css"):
        text = client.get(address).text
        assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[a-z0-9.-]+\.[a-z]+", text), address
