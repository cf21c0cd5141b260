"""checkengine doctor on a deployment: each thing that can be wrong is a sentence that says what to do."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkengine import deployment_checks as doctor
from checkengine.config import Settings
from checkengine.dashboards.collector import Collector
from checkengine.dashboards.rules.groups import alerts
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.catalog import migrate

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        spool={"directory": tmp_path / "spool"},
        capture={"directory": tmp_path / "bundles"},
        catalog={"url": str(tmp_path / "catalog.db")},
    )


def found(settings: Settings, **more: Any) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.deployment_checks(settings, **more)}


def test_a_machine_on_which_nothing_has_run_yet_is_well(settings: Settings, tmp_path: Path) -> None:
    checks = found(settings)
    assert set(checks) == {"spool", "bundles", "collector", "catalog"}
    assert all(check.ok for check in checks.values())
    assert list(tmp_path.iterdir()) == []


def test_spools_without_a_collector_are_named(settings: Settings) -> None:
    writer = SpoolWriter(settings.spool.directory)
    assert "start checkengine collect" in found(settings)["collector"].words
    collector = Collector(settings.spool.directory, lambda: Catalog.open(settings.catalog.url))
    assert found(settings)["collector"].ok
    collector.close()
    writer.close()


def test_a_directory_that_is_full_or_not_ours_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda place, mode: False)
        assert "cannot be written" in found(settings)["spool"].words
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 1 << 60)
    checks = found(settings)
    assert [checks[name].ok for name in ("spool", "bundles")] == [False, False]
    assert "MiB left" in checks["bundles"].words


def test_an_old_schema_a_damaged_file_and_a_server_that_is_away_are_named(settings: Settings, tmp_path: Path) -> None:
    catalog = Catalog.open(settings.catalog.url)
    assert found(settings)["catalog"].ok
    migrate(catalog.engine, "0001")
    catalog.close()
    assert "run checkengine db upgrade" in found(settings)["catalog"].words
    Path(settings.catalog.url).write_bytes(b"no database at all" * 100)
    assert "check [catalog] url" in found(settings)["catalog"].words
    away = settings.model_copy(
        update={"catalog": settings.catalog.model_copy(update={"url": "postgresql+psycopg://x@127.0.0.1:1/y"})}
    )
    assert not found(away)["catalog"].ok


def test_a_replica_that_fell_silent_is_named(settings: Settings) -> None:
    from checkengine.replay.catalog.ingest import ingest
    from checkengine.replay.spool_format import SpoolRecord

    catalog = Catalog.open(settings.catalog.url)
    with catalog.writing() as session:
        for number, (name, time) in enumerate((("a", 1000.0), ("b", 800.0)), 1):
            ingest(session, [SpoolRecord("c" * 16, number, "replica", time, name, "", {"started": 1.0})])
    catalog.close()
    assert "b; are they running" in found(settings, now=1010.0)["replicas"].words
    assert found(settings, now=900.0)["replicas"].ok


def test_a_receiver_that_is_away_inside_or_without_a_secret_is_named(settings: Settings, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def webhook(**more: Any) -> doctor.Check:
            chosen = {"url": f"http://127.0.0.1:{port}/", "secret_file": secret, **more}
            return found(Settings(**{**settings.model_dump(), "webhooks": chosen}))["webhook"]

        assert "allowed_networks" in webhook().words
        assert webhook(allowed_networks=["127.0.0.0/8"]).ok
        secret.write_text("whsec_short")
        assert "24 to 64 bytes" in webhook().words
        assert "cannot be read" in webhook(secret_file=tmp_path / "nowhere").words
        secret.write_text("\n")
        assert "holds no secret" in webhook().words
    secret.write_text(SECRET)
    assert "does not answer" in webhook(allowed_networks=["127.0.0.0/8"]).words
    traces = {"otlp_endpoint": f"http://127.0.0.1:{port}/v1/traces"}
    assert (
        "check [traces] otlp_endpoint" in found(Settings(**{**settings.model_dump(), "traces": traces}))["traces"].words
    )


@pytest.fixture
def prometheus() -> Iterator[tuple[str, dict[str, Any]]]:
    """Its address, and what it answers."""
    answers: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": answers[self.path.split("/")[-1].split("?")[0]]}).encode())

        def log_message(self, *arguments: Any) -> None:
            """The test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()


def test_a_prometheus_that_scrapes_nothing_or_lacks_rules_is_named(
    settings: Settings, prometheus: tuple[str, dict[str, Any]]
) -> None:
    address, answers = prometheus
    answers |= {"query": {"result": []}, "rules": {"groups": []}}
    checks = found(settings, prometheus=address)
    assert "scrape_configs" in checks["prometheus"].words
    assert "checkengine alerts rules" in checks["rules"].words
    answers |= {
        "query": {"result": [{}, {}]},
        "rules": {"groups": [{"rules": [{"name": alert.name} for alert in alerts()]}]},
    }
    checks = found(settings, prometheus=address)
    assert checks["prometheus"].words == "it scrapes 2 processes of checkengine"
    assert checks["rules"].ok
    for wrong in ("http://127.0.0.1:1", "file:///etc/passwd"):
        assert "does not answer" in found(settings, prometheus=wrong)["prometheus"].words


def test_doctor_prints_each_check_and_ends_with_1_where_one_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checkengine.commands.doctor import app

    monkeypatch.chdir(tmp_path)
    well = CliRunner().invoke(app, ["--json"])
    assert [check["ok"] for check in json.loads(well.output)["deployment"]] == [True] * 4
    SpoolWriter(tmp_path / "checkengine-spool").close()
    broken = CliRunner().invoke(app, [])
    assert broken.exit_code == 1
    assert "NOT collector: 1 spools wait" in broken.output
