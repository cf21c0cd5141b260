from __future__ import annotations

import multiprocessing
import os
import random
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parent))

import crashing_collector
from crashing_collector import finding

from checkengine.dashboards.collector import Collector, LeaseTakenError
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.events import ActionTaken, BundleWritten
from checkengine.replay.catalog import Catalog, CatalogError, queries
from checkengine.replay.catalog.models import FindingRow, SpoolRow


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    """Directory of spools and path of the catalog."""
    return tmp_path / "spools", tmp_path / "catalog.db"


@pytest.fixture(scope="module")
def context() -> multiprocessing.context.ForkServerContext:
    """One server a session: it is told of all modules that any test wants, whichever test comes first."""
    tests = Path(__file__).parent.parent
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crashing_writer", "crashing_collector"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(str(tests / folder) for folder in ("replay", "dashboards")))
        forkserver.ensure_running()
    return context


def sequences(database: Path) -> list[str]:
    """Of all findings in the catalog, as often as they are there."""
    catalog = Catalog.open(database)
    with catalog.reading() as session:
        found = list(session.scalars(sa.select(FindingRow.sequence)))
    catalog.close()
    return sorted(found)


def collect(spools: Path, database: Path) -> Any:
    collector = Collector(spools, lambda: Catalog.open(database))
    done = collector.run_once()
    collector.close()
    return done


def test_findings_actions_and_bundles_of_two_processes_become_one_incident_each(place: tuple[Path, Path]) -> None:
    spools, database = place
    first, second = SpoolWriter(spools, replica="host:1"), SpoolWriter(spools, replica="host:2")
    for number in range(3):
        first.handle(finding("inc-1", f"a{number}", 10.0 + number))
    first.handle(ActionTaken(Action(ActionKind.STOP, "a0", "logits.nonfinite", "inc-1", 2), 11.0))
    first.handle(BundleWritten("bundle-1", "inc-1", "/bundles/bundle-1", 12.0))
    second.handle(finding("inc-2", "b0"))
    done = collect(spools, database)
    assert (done.records, done.fresh, done.rejected, done.damaged) == (6, 6, 0, 0)
    catalog = Catalog.open(database)
    with catalog.reading() as session:
        rows = {row.id: row for row in queries.incidents(session)}
        assert {name: (row.replica, row.findings, row.sequences) for name, row in rows.items()} == {
            "inc-1": ("host:1", 3, 3),
            "inc-2": ("host:2", 1, 1),
        }
        assert (rows["inc-1"].first_seen, rows["inc-1"].last_seen) == (10.0, 12.0)
        assert [bundle.id for bundle in queries.bundles(session, "inc-1")] == ["bundle-1"]


def test_a_file_that_is_read_to_its_end_is_deleted_once_its_writer_has_gone_on(place: tuple[Path, Path]) -> None:
    spools, database = place
    writer = SpoolWriter(spools, rotate_bytes=900)
    for number in range(12):
        writer.handle(finding("inc-1", str(number)))
    collect(spools, database)
    assert len(list(spools.glob("*.spool"))) == 1
    writer.handle(finding("inc-1", "late"))
    assert collect(spools, database).fresh == 1
    writer.close()
    assert collect(spools, database).removed == 1
    assert list(spools.glob("*.spool")) == []
    assert len(sequences(database)) == 13
    with Catalog.open(database).reading() as session:
        assert list(session.scalars(sa.select(SpoolRow))) == []


def test_round_after_round_on_one_file_takes_in_what_is_new_and_tells_it(place: tuple[Path, Path]) -> None:
    spools, database = place
    writer = SpoolWriter(spools)
    now = [100.0]
    rounds: list[float] = []
    collector = Collector(
        spools, lambda: Catalog.open(database), clock=lambda: now[0], after_round=[lambda _, time: rounds.append(time)]
    )
    for number in range(4):
        now[0] += 1.0
        writer.handle(finding("inc-1", str(number)))
        assert collector.run_once().fresh == 1
    assert (collector.totals.records, collector.totals.failures, collector.totals.last_round) == (4, 0, 104.0)
    assert rounds == [101.0, 102.0, 103.0, 104.0]
    collector.close()
    assert sequences(database) == ["0", "1", "2", "3"]


def test_a_second_collector_is_refused_until_the_first_lets_go(place: tuple[Path, Path]) -> None:
    spools, database = place
    first = Collector(spools, lambda: Catalog.open(database))
    with pytest.raises(LeaseTakenError, match="another collector runs"):
        Collector(spools, lambda: Catalog.open(database))
    first.close()
    Collector(spools, lambda: Catalog.open(database)).close()


def test_with_the_catalog_down_the_spools_keep_everything_and_it_follows_when_it_is_back(
    place: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    spools, database = place
    up = False

    def open_catalog() -> Catalog:
        if not up:
            raise CatalogError("no catalog today")
        return Catalog.open(database)

    writer = SpoolWriter(spools, rotate_bytes=900)
    collector = Collector(spools, open_catalog)
    for number in range(10):
        writer.handle(finding("inc-1", str(number)))
        assert collector.try_once() is None
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "the catalog is down, the spools keep their records: no catalog today"
    ]
    up = True
    assert collector.try_once().fresh == 10  # type: ignore[union-attr]
    collector.close()


def test_a_catalog_that_fails_in_the_middle_of_a_transaction_loses_and_doubles_nothing(
    place: tuple[Path, Path],
) -> None:
    spools, database = place
    writer = SpoolWriter(spools)
    for number in range(10):
        writer.handle(finding("inc-1", str(number)))
    collector = Collector(spools, lambda: Catalog.open(database))
    failures = [3, 7, 1]

    def fail(*arguments: object) -> None:
        failures[0] -= 1
        if failures[0] == 0:
            failures.pop(0)
            raise sa.exc.OperationalError("statement", {}, Exception("the server went away"))

    sa.event.listen(sa.Engine, "before_cursor_execute", fail)
    try:
        rounds = 0
        while len(failures) > 1:
            assert collector.try_once() is None
            rounds += 1
        failures[0] = -1
        assert rounds == 2
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", fail)
    assert collector.try_once() is not None
    collector.close()
    assert sequences(database) == sorted(str(number) for number in range(10))


def test_the_torn_record_of_a_killed_process_is_counted_and_its_file_goes(place: tuple[Path, Path]) -> None:
    spools, database = place
    writer = SpoolWriter(spools)
    writer.handle(finding("inc-1", "whole"))
    writer.handle(finding("inc-1", "torn"))
    writer.close()
    file = next(spools.glob("*.spool"))
    file.write_bytes(file.read_bytes()[:-5])
    done = collect(spools, database)
    assert (done.fresh, done.damaged, done.removed) == (1, 1, 1)
    assert sequences(database) == ["whole"]


def test_a_collector_on_a_thread_collects_what_comes_and_ends_when_told(place: tuple[Path, Path]) -> None:
    spools, database = place
    collector = Collector(spools, lambda: Catalog.open(database))
    stop = threading.Event()
    thread = threading.Thread(target=collector.run, args=(stop, 0.001))
    writer = SpoolWriter(spools)
    thread.start()
    for number in range(20):
        writer.handle(finding("inc-1", str(number)))
    stop.set()
    thread.join()
    collector.close()
    assert len(sequences(database)) == 20


def killed(
    context: multiprocessing.context.ForkServerContext,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    signs: int,
) -> list[Any]:
    """Start the process, SIGKILL it after so many signs of life or when it has sent none for a second."""
    read, write = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*arguments, write), daemon=True)
    process.start()
    write.close()
    told: list[Any] = []
    while len(told) < signs and read.poll(5.0):
        told.append(read.recv())
    process.kill()
    try:
        while True:
            told.append(read.recv())
    except EOFError:
        process.join()
    assert process.exitcode == -9
    return told


def test_no_kill_of_writers_or_collectors_loses_or_doubles_a_record(
    place: tuple[Path, Path], context: multiprocessing.context.ForkServerContext
) -> None:
    spools, database = place
    chance = random.Random(20261130)
    appended: set[str] = set()
    for _ in range(15):
        told = killed(context, crashing_collector.write_until_killed, (spools,), chance.randrange(5, 40))
        appended |= {f"{boot} {number}" for boot, number in told}
        killed(context, crashing_collector.collect_until_killed, (spools, database), chance.randrange(1, 25))
    collect(spools, database)
    found = sequences(database)
    assert len(found) == len(set(found))
    # A record may be written and its writer killed before it could say so: at most one a writer.
    assert appended <= set(found)
    assert len(set(found) - appended) <= 15
    assert list(spools.glob("*.spool")) == []
