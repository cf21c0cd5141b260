"""checkengine db, collect and alerts as their users call them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkengine.commands.alerts import app as alerts
from checkengine.commands.collect import app as collect
from checkengine.commands.db import app as db
from checkengine.dashboards.collector import Collector
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.events import FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.catalog import Catalog, queries
from checkengine.replay.catalog.catalog import CatalogError, migrate

RUN = CliRunner()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(app: Any, *arguments: str, code: int = 0) -> str:
    result = RUN.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def write_finding(at: float = 0.0) -> None:
    spool = SpoolWriter("checkengine-spool")
    found = Finding("logits.nonfinite", "s", Severity.ERROR, 4, 2, "nonfinite", 1, {"nan": 3})
    spool.handle(FindingRaised(found, "inc-1", at or time.time(), True))
    spool.close()


def test_upgrade_check_and_vacuum_speak_of_one_catalog() -> None:
    assert call(db, "upgrade") == "the catalog is at revision 0003\n"
    assert call(db, "check").endswith("the catalog is whole, at revision 0003\n")
    assert call(db, "vacuum") == "nothing is too old\n"
    told = json.loads(call(db, "check", "--json"))
    assert (told["revision"], told["problems"], told["rows"]["incidents"]) == ("0003", [], 0)


def test_a_catalog_of_an_older_release_is_named_by_check_and_put_right_by_upgrade() -> None:
    catalog = Catalog.open("checkengine-catalog.db")
    migrate(catalog.engine, "0002")
    catalog.close()
    assert "run checkengine db upgrade" in call(db, "check", code=1)
    call(db, "upgrade")
    call(db, "check")


def test_a_mistyped_catalog_is_not_made_by_tidying_it_and_an_empty_name_is_no_default(place: Path) -> None:
    for arguments, told in (
        (["vacuum", "--url", "typo.db"], "there is no catalog"),
        (["upgrade", "--url", ""], "is empty"),
    ):
        result = RUN.invoke(db, arguments)
        assert isinstance(result.exception, CatalogError)
        assert told in str(result.exception)
    assert list(place.iterdir()) == []


def test_a_dashboard_says_that_it_made_a_catalog_and_wants_folders_that_are_there(place: Path) -> None:
    from checkengine.commands import dashboard

    result = RUN.invoke(dashboard.app, ["--store", "typo.db", "--bundles", "nowhere", "--port", "0"])
    assert "there was no catalog at typo.db (--store): a new, empty one was made" in result.output
    assert str(result.exception) == "--bundles nowhere: there is no such folder"


def test_a_catalog_is_named_as_the_dashboard_names_it() -> None:
    call(db, "upgrade", "--store", "other.db")
    assert call(db, "check", "--store", "other.db").endswith("at revision 0003\n")
    assert call(db, "check", "--url", "other.db").endswith("at revision 0003\n")


@pytest.mark.parametrize("url", ["nothere.db", "sqlite:///deep/nothere.db"])
def test_checking_a_catalog_that_is_not_there_says_so_and_makes_none(place: Path, url: str) -> None:
    result = RUN.invoke(db, ["check", "--url", url])
    assert isinstance(result.exception, CatalogError)
    assert result.exception.exit_code == 2
    assert "there is no catalog at" in str(result.exception)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_way_to_write_postgresql_takes_the_driver_that_comes_along(scheme: str) -> None:
    result = RUN.invoke(db, ["check", "--url", f"{scheme}://me:secret@127.0.0.1:1/none"])
    assert isinstance(result.exception, CatalogError)
    told = str(result.exception)
    assert "postgresql+psycopg://me:***@127.0.0.1:1/none" in told
    assert "onnection refused" in told
    assert told.endswith("check --url")
    assert "secret" not in told


@pytest.mark.parametrize(
    "url", ["mysql://me:secret@host/db", "redis://host", "postgres://me:secret@host:port/db", "://"]
)
def test_what_is_no_catalogs_url_is_told_with_an_example(url: str) -> None:
    result = RUN.invoke(db, ["upgrade", "--url", url])
    assert isinstance(result.exception, CatalogError)
    assert "write --url as postgresql://user@host/database, or the path of an SQLite file" in str(result.exception)
    assert "secret" not in str(result.exception)


def test_without_a_url_the_message_names_the_setting_and_the_option(place: Path) -> None:
    (place / "checkengine.toml").write_text('[catalog]\nurl = "nothere.db"\n')
    result = RUN.invoke(db, ["check"])
    assert "check [catalog] url, or give --url" in str(result.exception)


def test_a_missing_driver_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    result = RUN.invoke(db, ["check", "--url", "postgres://me@host/db"])
    assert "pip install 'checkengine[postgres]'" in str(result.exception)


def test_vacuum_deletes_what_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    write_finding(at=1.0)
    with monkeypatch.context() as patch:
        patch.setenv("CHECKENGINE_CATALOG__KEEP_INCIDENTS_DAYS", "0")
        call(collect, "--once")
    assert json.loads(call(db, "vacuum", "--json"))["deleted"]["incidents"] == 1


def test_collect_once_takes_in_what_the_spools_hold() -> None:
    write_finding()
    assert json.loads(call(collect, "--once", "--json")) == {"up": True, "records": 1}
    with Catalog.open("checkengine-catalog.db").reading() as session:
        assert [row.id for row in queries.incidents(session)] == ["inc-1"]


def test_collect_says_when_the_catalog_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_CATALOG__URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    write_finding()
    assert "the spools keep their records" in call(collect, "--once", code=1)


def test_a_second_collector_is_one_clear_error() -> None:
    first = Collector("checkengine-spool", lambda: Catalog.open("checkengine-catalog.db"))
    done = subprocess.run(
        [sys.executable, "-m", "checkengine", "collect", "--once"], capture_output=True, text=True, check=False
    )
    first.close()
    assert done.returncode == 2
    assert done.stderr.startswith("checkengine: another collector runs")


def test_a_collector_ends_on_a_signal_with_everything_taken_in() -> None:
    process = subprocess.Popen([sys.executable, "-m", "checkengine", "collect"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "collecting" in process.stderr.readline()
    write_finding()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    with Catalog.open("checkengine-catalog.db").reading() as session:
        assert len(queries.incidents(session)) == 1


def test_rules_and_dashboards_are_written_for_a_deployment(place: Path) -> None:
    text = call(alerts, "rules", "--dashboard", "https://ce.example/", "--runbooks", "https://wiki.example")
    assert 'dashboard_url: "https://ce.example/controls"' in text
    call(alerts, "rules", "--output", "rules.yaml")
    assert (place / "rules.yaml").read_text().startswith("# Generated by checkengine")
    call(alerts, "grafana", "--output", "boards")
    assert len(list((place / "boards").glob("*.json"))) == 5
