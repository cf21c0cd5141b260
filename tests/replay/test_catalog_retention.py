"""What is too old goes, in short transactions; what is held stays."""

from __future__ import annotations

import sys
from pathlib import Path

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parent))

from catalog_records import finding, replica, request

from checkengine.replay.bundle import hold
from checkengine.replay.catalog import Catalog, marks
from checkengine.replay.catalog.health import examine, newest_revision
from checkengine.replay.catalog.ingest import ingest
from checkengine.replay.catalog.marks import Actor
from checkengine.replay.catalog.models import Base, BundleRow, CauseRow, FindingRow, IncidentRow
from checkengine.replay.catalog.retention import CHUNK, DAY, Policy, expire, tidy
from checkengine.replay.settings import CatalogSettings
from checkengine.replay.spool_format import SpoolRecord

ANN = Actor("ann")


def bundle(number: int, incident: str, path: str = "/bundles/x", time: float = 10.0) -> SpoolRecord:
    data = {"bundle": f"b-{number}", "incident": incident, "path": path}
    return SpoolRecord("a" * 16, number, "bundle", time, "host:1", "", data)


def names(catalog: Catalog, column: sa.orm.InstrumentedAttribute[str]) -> list[str]:
    with catalog.reading() as session:
        return sorted(session.scalars(sa.select(column)))


def test_requests_go_after_a_week_and_incidents_after_a_year(any_catalog: Catalog) -> None:
    old, recent = 100.0, 100.0 + 8 * DAY
    with any_catalog.writing() as session:
        ingest(session, [request(n, time=old, sequence=f"s{n}") for n in range(1, 4)] + [request(9, time=recent)])
        ingest(session, [finding(20, time=old), replica(21, time=old), replica(22, time=recent, name="host:2")])
    gone = expire(any_catalog, Policy(), old + 7.5 * DAY)
    assert gone == {"requests": 3}
    gone = expire(any_catalog, Policy(), old + 366 * DAY)
    assert gone == {"requests": 1, "replicas": 2, "activity": 1, "findings": 1, "incidents": 1, "causes": 1}


def test_held_incidents_and_those_with_a_held_bundle_stay_with_all_their_rows(any_catalog: Catalog) -> None:
    with any_catalog.writing() as session:
        for number in range(1, 5):
            ingest(session, [finding(number, incident=f"inc-{number}"), bundle(10 + number, f"inc-{number}")])
            marks.comment(session, ANN, f"inc-{number}", "look", 11.0)
        assert marks.hold(session, ANN, "inc-1", True, 12.0)
        assert not marks.hold(session, ANN, "inc-9", True, 12.0)
        session.execute(sa.update(BundleRow).where(BundleRow.id == "b-12").values(held=True))
    expire(any_catalog, Policy(audit_log=None), 500 * DAY)
    assert names(any_catalog, IncidentRow.id) == ["inc-1", "inc-2"]
    assert names(any_catalog, FindingRow.incident_id) == ["inc-1", "inc-2"]
    assert names(any_catalog, BundleRow.id) == ["b-11", "b-12"]
    with any_catalog.reading() as session:
        assert [row.text for row in marks.comments(session, "inc-1")] == ["look"]
        assert len(marks.audit_log(session)) == 5
        assert session.scalar(sa.select(sa.func.count()).select_from(CauseRow)) == 1


def test_a_bundle_that_is_held_on_its_disk_holds_its_incident(any_catalog: Catalog, tmp_path: Path) -> None:
    for name in ("b-1", "b-2"):
        (tmp_path / name).mkdir()
    hold(tmp_path / "b-1")
    with any_catalog.writing() as session:
        for number in (1, 2):
            ingest(session, [finding(number, incident=f"inc-{number}")])
            ingest(session, [bundle(number, f"inc-{number}", str(tmp_path / f"b-{number}"))])
    expire(any_catalog, Policy(), 500 * DAY)
    assert names(any_catalog, IncidentRow.id) == ["inc-1"]


def test_more_than_one_transactions_worth_goes_in_one_call(any_catalog: Catalog) -> None:
    with any_catalog.writing() as session:
        ingest(session, [request(n, time=1.0, sequence=f"s{n}") for n in range(CHUNK + 7)])
        ingest(session, [finding(9000 + n, incident=f"inc-{n}") for n in range(CHUNK + 3)])
    gone = expire(any_catalog, Policy(), 500 * DAY)
    assert (gone["requests"], gone["incidents"], gone["findings"]) == (CHUNK + 7, CHUNK + 3, CHUNK + 3)


def test_a_policy_without_a_limit_keeps_for_ever() -> None:
    settings = CatalogSettings(keep_requests_days=0, keep_incidents_days=0)
    assert Policy.of(settings) == Policy(requests=None, incidents=None)


def test_a_catalog_that_was_tidied_works_on(any_catalog: Catalog) -> None:
    with any_catalog.writing() as session:
        ingest(session, [finding(1)])
    tidy(any_catalog)
    with any_catalog.writing() as session:
        ingest(session, [finding(2)])
    assert len(names(any_catalog, FindingRow.incident_id)) == 2


def test_a_whole_catalog_has_no_problem_and_a_row_count_for_every_table(any_catalog: Catalog, tmp_path: Path) -> None:
    there = tmp_path / "bundles" / "b-1"
    there.mkdir(parents=True)
    with any_catalog.writing() as session:
        ingest(session, [finding(1), bundle(1, "inc-1", str(there)), bundle(2, "inc-1", str(tmp_path / "bundles/b-2"))])
        ingest(session, [bundle(3, "inc-1", "/another/host/b-3")])
    health = examine(any_catalog, [tmp_path / "bundles"])
    assert health.problems == []
    assert health.revision == newest_revision()
    assert set(health.rows) == set(Base.metadata.tables)
    assert health.rows["findings"] == 1
    assert [note.split(":")[1].strip() for note in health.notes if "no longer on the disk" in note] == ["b-2"]


def test_a_damaged_file_and_an_old_schema_are_told_in_a_sentence(tmp_path: Path) -> None:
    from checkengine.replay.catalog.catalog import migrate

    catalog = Catalog.open(tmp_path / "c.db")
    migrate(catalog.engine, "0001")
    assert examine(catalog).problems == ["the schema is at revision 0001, not 0003: run checkengine db upgrade"]
    migrate(catalog.engine, "head")
    with catalog.writing() as session:
        ingest(session, [finding(n, incident=f"inc-{n}") for n in range(300)])
    with catalog.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    catalog.close()
    data = bytearray((tmp_path / "c.db").read_bytes())
    for page in range(20, len(data) // 4096, 7):
        data[page * 4096 + 100 : page * 4096 + 400] = b"\xa5" * 300
    (tmp_path / "c.db").write_bytes(data)
    (tmp_path / "c.db-wal").unlink(missing_ok=True)
    damaged = examine(Catalog.open(tmp_path / "c.db", upgraded=False))
    assert any("restore it from a backup" in problem for problem in damaged.problems)
