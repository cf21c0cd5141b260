from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from checkengine.replay.catalog import Catalog, CatalogError, queries
from checkengine.replay.catalog.catalog import make_engine, migrate
from checkengine.replay.catalog.ingest import ingest, record_replay
from checkengine.replay.catalog.models import Base, FindingRow
from checkengine.replay.spool_format import SpoolRecord


def finding(number: int, *, time: float = 10.0, primary: bool = True, **changes: object) -> SpoolRecord:
    data = {
        "incident": "inc-1", "primary": primary, "kind": "logits.nonfinite", "severity": 2, "step": 4, "token": 2,
        "guard": "nonfinite", "version": 1, "evidence": {"nan": 3, "worst": "nan"},
    }  # fmt: skip
    return SpoolRecord("a" * 16, number, "finding", time, "host:1", "s-1", data | changes)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog.open(tmp_path / "deep" / "catalog.db")


def test_the_migrations_make_exactly_the_tables_of_the_models(catalog: Catalog) -> None:
    with catalog.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_migrations_go_down_to_nothing_and_up_again(catalog: Catalog) -> None:
    migrate(catalog.engine, "base")
    assert sa.inspect(catalog.engine).get_table_names() == ["alembic_version"]
    migrate(catalog.engine, "head")
    with catalog.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_a_migration_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    engine = make_engine(sa.make_url(f"sqlite:///{tmp_path}/c.db"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE bundles (id INTEGER)"))
    with pytest.raises(sa.exc.OperationalError, match="already exists"):
        migrate(engine, "head")
    assert sa.inspect(engine).get_table_names() == ["bundles"]


def test_sqlite_runs_with_a_write_ahead_log_and_full_synchronisation(catalog: Catalog) -> None:
    with catalog.engine.connect() as connection:
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
        assert values == ["wal", 2]
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 10_000


def test_many_openers_at_once_all_get_a_catalog(tmp_path: Path) -> None:
    opened, errors = [], []
    ready = threading.Barrier(8)

    def open_one() -> None:
        ready.wait()
        try:
            opened.append(Catalog.open(tmp_path / "c.db"))
        except CatalogError as error:
            errors.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(opened) == 8


def test_writers_at_once_wait_for_each_other_and_lose_nothing(tmp_path: Path) -> None:
    catalogs = [Catalog.open(tmp_path / "c.db") for _ in range(4)]
    ready = threading.Barrier(4)

    def write(catalog: Catalog, offset: int) -> None:
        ready.wait()
        for number in range(10):
            with catalog.writing() as session:
                ingest(session, [finding(offset + number)])

    threads = [threading.Thread(target=write, args=(c, 10 * i)) for i, c in enumerate(catalogs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with catalogs[0].reading() as session:
        assert queries.incident(session, "inc-1").findings == 40  # type: ignore[union-attr]


def test_a_catalog_that_cannot_be_opened_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"this is no database, but it is long enough to be looked at" * 20)
    for url in (tmp_path / "c.db", tmp_path / "c.db" / "below"):
        with pytest.raises(CatalogError, match=r"cannot be opened .*check \[catalog\] url") as caught:
            Catalog.open(url)
        assert "\n" not in str(caught.value)


def test_a_password_in_the_url_is_not_told() -> None:
    with pytest.raises(CatalogError) as caught:
        Catalog.open("postgresql+nosuchdriver://user:geheim@localhost/x")
    assert "geheim" not in str(caught.value)


def test_ingesting_a_record_twice_changes_nothing(catalog: Catalog) -> None:
    records = [
        finding(1, time=20.0),
        finding(2, time=10.0, kind="repetition.loop", primary=False),
        SpoolRecord("a" * 16, 3, "action", 21.0, "host:1", "s-1",
                    {"kind": "stop", "finding": "logits.nonfinite", "incident": "inc-1", "keep_tokens": 2}),
        SpoolRecord("a" * 16, 4, "bundle", 22.0, "host:1", "", {"bundle": "b-1", "incident": "inc-1", "path": "/x"}),
        SpoolRecord("a" * 16, 5, "audit", 23.0, "host:1", "s-2", {"step": 3, "verdict": "code defect"}),
    ]  # fmt: skip
    with catalog.writing() as session:
        assert ingest(session, records).fresh == 5
    for again in (records, records[::-1], records[2:]):
        with catalog.writing() as session:
            assert ingest(session, again).fresh == 0
    with catalog.reading() as session:
        row = queries.incident(session, "inc-1")
        assert row is not None
        assert (row.kind, row.findings, row.evidence, row.sequences) == ("logits.nonfinite", 1, 1, 1)
        assert (row.first_seen, row.last_seen) == (10.0, 20.0)
        assert queries.findings(session, "inc-1")[0].evidence == {"nan": 3, "worst": "nan"}
        assert [(a.kind, a.keep_tokens) for a in queries.actions(session, "inc-1")] == [("stop", 2)]
        assert [b.path for b in queries.bundles(session, "inc-1")] == ["/x"]
        assert [n.kind for n in queries.notices(session)] == ["audit"]


def test_an_action_that_comes_before_its_finding_finds_its_incident(catalog: Catalog) -> None:
    action = SpoolRecord("b" * 16, 1, "action", 5.0, "h", "s",
                         {"kind": "stop", "finding": "x", "incident": "inc-1", "keep_tokens": 0})  # fmt: skip
    with catalog.writing() as session:
        assert ingest(session, [action, finding(1)]).fresh == 2
    with catalog.reading() as session:
        assert queries.incident(session, "inc-1").kind == "logits.nonfinite"  # type: ignore[union-attr]


def test_a_record_that_fits_no_row_is_rejected_and_the_others_are_written(catalog: Catalog) -> None:
    bad = [
        finding(1, evidence=5),
        finding(2, severity="much"),
        finding(3, token=2**40),
        finding(4, step=2**70),
        SpoolRecord("a" * 16, 5, "finding", 1.0),
        finding(2**70),
    ]
    with catalog.writing() as session:
        done = ingest(session, [*bad, finding(9)])
    assert (done.rejected, done.fresh) == (6, 1)


def test_hostile_text_is_stored_as_text_that_every_database_takes(catalog: Catalog) -> None:
    hostile = finding(1, kind="k" * 500, incident="inc \ud800\0 '; DROP TABLE findings; --", guard="名前 🚨")
    with catalog.writing() as session:
        assert ingest(session, [hostile]).fresh == 1
    with catalog.reading() as session:
        row = session.scalars(sa.select(FindingRow)).one()
        assert row.kind == "k" * 128
        assert row.guard == "名前 🚨"
        assert row.incident_id == "inc ?\ufffd '; DROP TABLE findings; --"


def test_queries_filter_order_and_page(catalog: Catalog) -> None:
    with catalog.writing() as session:
        for number in range(10):
            kind = "a" if number % 2 else "b"
            ingest(session, [finding(number, time=float(number), incident=f"inc-{number}", kind=kind)])
    with catalog.reading() as session:
        assert [row.id for row in queries.incidents(session, limit=2)] == ["inc-9", "inc-8"]
        assert [row.id for row in queries.incidents(session, kind="b", since=4.0)] == ["inc-8", "inc-6", "inc-4"]
        assert [row.id for row in queries.incidents(session, limit=2, offset=8)] == ["inc-1", "inc-0"]


def test_replays_and_acknowledgements_are_kept(catalog: Catalog) -> None:
    with catalog.writing() as session:
        ingest(session, [finding(1)])
        record_replay(session, bundle="b-1", time=1.0, verdict="transient", exit_code=0, result={"steps": 3})
        record_replay(session, bundle="b-1", time=2.0, verdict="code defect", exit_code=1, result={})
        assert queries.acknowledge(session, "inc-1", 3.0)
        assert not queries.acknowledge(session, "inc-2", 3.0)
    with catalog.reading() as session:
        assert [row.verdict for row in queries.replays(session, "b-1")] == ["code defect", "transient"]
        assert queries.incident(session, "inc-1").acknowledged == 3.0  # type: ignore[union-attr]


def test_every_statement_compiles_for_postgresql(catalog: Catalog) -> None:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateTable

    for table in Base.metadata.sorted_tables:
        text = str(CreateTable(table).compile(dialect=postgresql.dialect()))
        assert "CREATE TABLE" in text
