"""The catalog on SQLite and on a real PostgreSQL: what one promises the other keeps."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

sys.path.insert(0, str(Path(__file__).parent))

from catalog_records import finding, replica, request

from checkengine.replay.catalog import Catalog, counts, queries, register
from checkengine.replay.catalog.catalog import make_engine, migrate
from checkengine.replay.catalog.ingest import ingest
from checkengine.replay.catalog.models import ActivityRow, Base, CauseRow, FindingRow, IncidentRow
from checkengine.replay.spool_format import SpoolRecord


def write(catalog: Catalog, *records: SpoolRecord) -> int:
    with catalog.writing() as session:
        return ingest(session, records).fresh


def incident(catalog: Catalog, name: str = "inc-1") -> IncidentRow:
    with catalog.reading() as session:
        row = session.get(IncidentRow, name)
        assert row is not None
        return row


def differences(engine: sa.Engine) -> list[object]:
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), Base.metadata))


def test_migrations_go_up_down_and_up_again_step_by_step(empty_database_url: str) -> None:
    engine = make_engine(sa.make_url(empty_database_url))
    for revision in ("0001", "0002", "0003"):
        migrate(engine, revision)
    assert differences(engine) == []
    for revision in ("0002", "0001", "base"):
        migrate(engine, revision)
    assert sa.inspect(engine).get_table_names() == ["alembic_version"]
    migrate(engine, "head")
    assert differences(engine) == []
    engine.dispose()


def test_incidents_of_the_first_release_get_causes_when_it_is_upgraded(empty_database_url: str) -> None:
    engine = make_engine(sa.make_url(empty_database_url))
    migrate(engine, "0001")
    old = (
        "INSERT INTO incidents (id, kind, replica, first_seen, last_seen, findings, evidence, sequences, acknowledged)"
    )
    found = (
        "INSERT INTO findings (boot, number, incident_id, time, replica, kind, sequence, severity, step, token, guard,"
        " version, is_primary, evidence)"
    )
    with engine.begin() as connection:
        connection.execute(
            sa.text(f"{old} VALUES ('a', 'k', 'r', 1, 2, 1, 0, 1, NULL), ('b', 'k', 'r', 1, 3, 0, 0, 0, 9)")
        )
        connection.execute(sa.text(f"{found} VALUES ('x', 1, 'a', 1, 'r', 'k', 's', 2, 1, 1, 'g', 1, true, '{{}}')"))
    engine.dispose()
    catalog = Catalog.open(empty_database_url)
    first, second = incident(catalog, "a"), incident(catalog, "b")
    assert first.cause is not None
    assert (first.cause.guard, first.cause.severity, first.status, first.sequence) == ("g", 2, "open", "s")
    assert second.cause is not None
    assert (second.cause.guard, second.cause.kind, second.status) == ("", "k", "acknowledged")
    migrate(catalog.engine, "0001")
    with catalog.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT id FROM incidents ORDER BY id")).scalars().all() == ["a", "b"]
    catalog.close()


KILLED_MIGRATION = """
import os, signal, sys
import sqlalchemy as sa
from checkengine.replay.catalog.catalog import make_engine, migrate

left = int(sys.argv[2])

def statement(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

engine = make_engine(sa.make_url(sys.argv[1]))
sa.event.listen(engine, "before_cursor_execute", statement)
migrate(engine, "head")
print("done")
"""


@pytest.mark.parametrize("statements", [8, 20, 45])
def test_a_migration_that_is_killed_is_finished_by_the_next_one_and_loses_no_incident(
    empty_database_url: str, statements: int
) -> None:
    engine = make_engine(sa.make_url(empty_database_url))
    migrate(engine, "0001")
    with engine.begin() as connection:
        columns = "id, kind, replica, first_seen, last_seen, findings, evidence, sequences, acknowledged"
        connection.execute(sa.text(f"INSERT INTO incidents ({columns}) VALUES ('a', 'k', 'r', 1, 2, 1, 0, 1, NULL)"))
    command = [sys.executable, "-c", KILLED_MIGRATION, empty_database_url, str(statements)]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, (killed.stdout, killed.stderr)
    migrate(engine, "head")
    assert differences(engine) == []
    engine.dispose()
    catalog = Catalog.open(empty_database_url)
    assert incident(catalog, "a").kind == "k"
    catalog.close()


def test_an_incident_is_placed_by_what_its_replica_told_of_itself(any_catalog: Catalog) -> None:
    write(any_catalog, finding(2), replica(1))
    cause = incident(any_catalog).cause
    assert cause is not None
    assert (cause.guard, cause.model, cause.device, cause.driver, cause.kernel, cause.severity) == (
        "nonfinite", "m", "GPU-1", "550", "flash", 2,
    )  # fmt: skip


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["finding first", "request first"])
def test_an_incident_learns_trace_and_prefix_from_its_request_in_either_order(
    any_catalog: Catalog, order: tuple[int, int]
) -> None:
    records = [finding(1), request(2)]
    for index in order:
        write(any_catalog, records[index])
    row = incident(any_catalog)
    assert row.cause is not None
    assert (row.trace_id, row.cause.prefix, row.sequence) == ("t" * 32, "hit", "s-1")


def test_writing_the_same_records_again_in_any_order_counts_nothing_twice(any_catalog: Catalog) -> None:
    records = [
        replica(1),
        finding(2, time=20.0),
        finding(3, time=10.0, kind="repetition.loop", primary=False),
        finding(4, time=30.0, request="s-2"),
        finding(5, time=31.0, request="s-2"),
        request(6),
    ]
    assert write(any_catalog, *records) == 5
    for again in (records, records[::-1], records[2:4] + records[2:4]):
        assert write(any_catalog, *again) == 0
    row = incident(any_catalog)
    assert (row.kind, row.findings, row.evidence, row.sequences) == ("logits.nonfinite", 3, 1, 2)
    assert (row.first_seen, row.last_seen) == (10.0, 31.0)
    with any_catalog.reading() as session:
        assert counts.activity(session, since=0, until=300, points=1) == {"nonfinite": [3]}
        assert counts.incidents_begun(session, since=0, until=300, points=1) == {"nonfinite": [1]}
        assert len(queries.findings(session, "inc-1")) == 4


def test_one_record_twice_in_a_batch_is_one_row(any_catalog: Catalog) -> None:
    assert write(any_catalog, finding(1), finding(1)) == 1
    assert incident(any_catalog).findings == 1


def test_writers_at_once_make_one_cause_and_count_every_finding(
    any_catalog: Catalog, open_catalog: Callable[[], Catalog]
) -> None:
    catalogs = [open_catalog() for _ in range(4)]
    ready, errors = threading.Barrier(4), []

    def run(number: int) -> None:
        ready.wait()
        try:
            for batch in range(10):
                found = finding(100 * number + batch, incident=f"inc-{number}", time=float(batch), replica="r")
                write(
                    catalogs[number],
                    found,
                    finding(1000 + 100 * number + batch, incident=f"other-{number}", replica="r"),
                )
        except sa.exc.SQLAlchemyError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for catalog in catalogs:
        catalog.close()
    assert errors == []
    with any_catalog.reading() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(FindingRow)) == 80
        assert session.scalar(sa.select(sa.func.count()).select_from(CauseRow)) == 1
        assert session.scalar(sa.select(sa.func.sum(ActivityRow.findings))) == 80


def test_a_replicas_row_is_its_newest_word_whatever_comes_late(any_catalog: Catalog) -> None:
    write(any_catalog, replica(2, time=50.0, driver="560"))
    write(any_catalog, replica(1, time=10.0, driver="550"))
    with any_catalog.reading() as session:
        row = register.replica(session, "host:1")
        assert row is not None
        assert (row.driver, row.last_seen) == ("560", 50.0)


def test_what_a_replica_has_otherwise_than_its_siblings_is_named(any_catalog: Catalog) -> None:
    others = [replica(n, name=f"host:{n}") for n in range(2, 5)]
    write(any_catalog, replica(1, driver="560", versions={"torch": "2.14", "numba": "1"}), *others)
    with any_catalog.reading() as session:
        mine = register.replica(session, "host:1")
        assert mine is not None
        assert register.environment_difference(mine, register.replicas(session)) == [
            ("driver", "560", {"550": 3}),
            ("versions.numba", "1", {"": 3}),
            ("versions.torch", "2.14", {"2.13": 3}),
        ]


def test_a_request_is_found_by_any_of_its_names(any_catalog: Catalog) -> None:
    write(any_catalog, request(1), request(2, sequence="s-2"))
    with any_catalog.reading() as session:
        for name, sequences in (("resp-1", 2), ("req-1", 2), ("t" * 32, 2), ("s-2", 1), ("nobody", 0)):
            assert len(register.requests(session, name)) == sequences


def test_a_report_tells_what_a_guard_would_have_stopped(any_catalog: Catalog) -> None:
    stop = {"kind": "stop", "finding": "k", "incident": "inc-1", "keep_tokens": 0}
    write(
        any_catalog,
        finding(1, request="stopped"),
        SpoolRecord("a" * 16, 2, "action", 11.0, "host:1", "stopped", stop),
        finding(3, request="passed"),
        finding(4, request="passed"),
        finding(5, request="mild", severity=1),
    )
    with any_catalog.reading() as session:
        assert [row.sequence for row in register.would_have_stopped(session, "nonfinite", since=0)] == ["passed"]


def test_a_time_that_is_no_number_is_refused_and_the_rest_is_written(any_catalog: Catalog) -> None:
    with any_catalog.writing() as session:
        done = ingest(session, [finding(1, time=float("nan")), finding(2), request(3, prompt_tokens=2**40)])
    assert (done.fresh, done.rejected) == (1, 2)
