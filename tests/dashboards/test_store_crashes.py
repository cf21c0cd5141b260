"""Engines and their database are killed at random: nothing that was told is lost, and nothing is there twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from checkengine.benchmarks.postgres import PostgresServer
from checkengine.benchmarks.store_crashes import Outcome, Plan, crash_store, fork_context


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One of its own: it is killed."""
    server = PostgresServer()
    yield server
    server.close()


def whole(outcome: Outcome, plan: Plan) -> None:
    assert outcome.told >= plan.writers * plan.findings
    assert (outcome.lost, outcome.doubled, outcome.miscounted) == (0, 0, 0)
    assert outcome.found >= outcome.told
    assert outcome.writer_kills == plan.writers * plan.kills


def test_no_kill_of_engines_or_of_postgresql_loses_or_doubles_a_finding(tmp_path: Path, server: PostgresServer) -> None:
    plan = Plan(writers=4, findings=150, kills=2, server_kills=3)

    def kill_server() -> None:
        server.kill()
        server.start()

    outcome = crash_store(plan, tmp_path, server.url, fork_context(), kill_server)
    whole(outcome, plan)
    assert outcome.server_kills == 3


def test_no_kill_of_engines_that_share_an_sqlite_file_loses_or_doubles_a_finding(tmp_path: Path) -> None:
    plan = Plan(writers=4, findings=100, kills=2, server_kills=0)
    outcome = crash_store(plan, tmp_path / "spools", f"sqlite:///{tmp_path}/catalog.db", fork_context())
    whole(outcome, plan)


def test_a_loss_is_noticed(tmp_path: Path) -> None:
    import sqlalchemy as sa

    from checkengine.benchmarks.store_crashes import judge
    from checkengine.replay.catalog import Catalog
    from checkengine.replay.catalog.models import FindingRow

    url = f"sqlite:///{tmp_path}/catalog.db"
    outcome = crash_store(Plan(1, 20, 0, 0), tmp_path / "spools", url, fork_context())
    catalog = Catalog.open(url)
    with catalog.writing() as session:
        session.execute(sa.delete(FindingRow).where(FindingRow.number == 7))
    catalog.close()
    judge(outcome, url)
    assert outcome.lost > 0
    assert outcome.miscounted == 1
