from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkengine.commands.audit import app
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.errors import UserError
from checkengine.guards.events import AuditCoverage, AuditJudged

STRATA = {"all rows": [1000, 20, 0], "page start": [30, 15, 0], "reused block": [10, 0, 0]}


def coverage(strata: dict[str, list[int]], time: float, judged: int = 5) -> AuditCoverage:
    return AuditCoverage(strata, judged, {"no fault found": judged}, 2, 1, 0.5, time)


def catalogued(folder: Path, *replicas: list[Any]) -> Path:
    """A configuration whose catalog holds what these replicas told."""
    from checkengine.dashboards.collector import Collector
    from checkengine.replay.catalog import Catalog

    for number, events in enumerate(replicas):
        spool = SpoolWriter(folder / "spool", replica=f"host:{number}")
        for event in events:
            spool.handle(event)
        spool.close()
    url = str(folder / "catalog.db")
    collector = Collector(folder / "spool", lambda: Catalog.open(url))
    collector.run_once()
    collector.close()
    (folder / "checkengine.toml").write_text(f'[catalog]\nurl = "{url}"\n')
    return folder / "checkengine.toml"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_replicas_add_up_and_only_the_last_word_of_each_counts(tmp_path: Path) -> None:
    first = [coverage({"all rows": [10, 1, 0]}, 1.0, judged=1), coverage(STRATA, 2.0)]
    config = catalogued(tmp_path, first, [coverage(STRATA, 3.0)])
    result = run("--config", str(config), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    strata = {each["stratum"]: each for each in found["strata"]}
    assert (strata["all rows"]["seen"], strata["page start"]["audited"]) == (2000, 30)
    assert strata["page start"]["share"] == 0.5
    assert strata["page start"]["rate_bound_95"] == pytest.approx(0.0950, rel=1e-2)
    assert strata["reused block"]["rate_bound_95"] == 1.0
    assert (found["judged"], found["processes"], found["skipped"]) == (10, 2, 4)


def test_a_conviction_is_named_and_is_the_exit_code(tmp_path: Path) -> None:
    judged = [
        AuditJudged("inc-7", "req-3", 40, "code defect", 2.0),
        AuditJudged(None, "req-4", 41, "no fault found", 3.0),
    ]
    config = catalogued(tmp_path, [*judged, coverage(STRATA | {"page start": [30, 15, 1]}, 4.0)])
    result = run("--config", str(config))
    assert result.exit_code == 1
    assert "convicted: code defect, step 40, sequence req-3, incident inc-7, replica host:0" in result.output
    assert "req-4" not in result.output


def test_the_table_tells_share_and_bound(tmp_path: Path) -> None:
    result = run("--config", str(catalogued(tmp_path, [coverage(STRATA, 1.0)])))
    row = next(line for line in result.output.splitlines() if "page start" in line)
    assert "50 %" in row
    assert "0.18" in row
    assert "unknown" in next(line for line in result.output.splitlines() if "reused block" in line)


def test_without_a_catalog_there_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "checkengine.toml").write_text(f'[catalog]\nurl = "{tmp_path}/none.db"\n')
    result = run("--config", str(tmp_path / "checkengine.toml"))
    assert isinstance(result.exception, UserError)
    assert "none.db" in str(result.exception)


@pytest.fixture
def server() -> Iterator[tuple[dict[str, Any], str]]:
    """Answers what it is told to."""
    answer: dict[str, Any] = {"status": 200, "body": {}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer["asked"] = self.path, self.headers.get("Authorization")
            payload = json.dumps(answer["body"]).encode()
            self.send_response(answer["status"])
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: Any) -> None:
            pass

    here = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=here.serve_forever)
    thread.start()
    yield answer, f"http://127.0.0.1:{here.server_port}"
    here.shutdown()
    thread.join()
    here.server_close()


def test_a_running_server_is_asked_with_its_token(server: Any) -> None:
    answer, url = server
    status = {"strata": STRATA, "judged": 3, "verdicts": {"no fault found": 3}, "skipped": 0, "dropped": 0}
    answer["body"] = status | {"cpu_seconds": 0.25, "convictions": []}
    result = run("--url", url, "--token", "secret", "--json")
    assert result.exit_code == 0, result.output
    assert answer["asked"] == ("/checkengine/audit", "Bearer secret")
    assert json.loads(result.output)["judged"] == 3


def test_a_server_that_audits_nothing_says_so(server: Any) -> None:
    answer, url = server
    answer |= {"status": 404, "body": {"error": {"message": "nothing is audited here"}}}
    assert "nothing is audited here" in str(run("--url", url).exception)


@pytest.mark.parametrize("body", [{}, {"strata": 3}, {"strata": {"x": [1]}, "verdicts": {}, "judged": 0}])
def test_an_answer_that_is_no_report_is_refused(server: Any, body: dict[str, Any]) -> None:
    answer, url = server
    answer["body"] = body
    assert isinstance(run("--url", url).exception, UserError)
