"""What lies in a folder of spools and is none, and disks that take nothing."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parent))

from crashing_collector import finding

from checkengine.dashboards.collector import Collector
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.errors import UserError
from checkengine.replay.catalog import Catalog, CatalogError
from checkengine.replay.catalog.models import FindingRow

NAME = "00000000000000aa-00000000.spool"
"""Before every other one."""


def written(spools: Path, count: int = 3) -> None:
    writer = SpoolWriter(spools, replica="host:1")
    for number in range(count):
        writer.handle(finding("inc-1", f"s{number}"))
    writer.close()


def sequences(database: Path) -> int:
    catalog = Catalog.open(database)
    with catalog.reading() as session:
        found = session.scalar(sa.select(sa.func.count()).select_from(FindingRow))
    catalog.close()
    return found or 0


def linked(path: Path) -> None:
    (path.parent.parent / "foreign").write_text("not yours\n")
    path.symlink_to(path.parent.parent / "foreign")


STRANGERS: dict[str, Callable[[Path], object]] = {
    "a link to a file elsewhere": linked,
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a pipe that nobody writes into": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS.keys())
def test_what_is_no_spool_file_is_neither_followed_nor_removed_and_keeps_no_other_from_the_catalog(
    stranger: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spools, database = tmp_path / "spools", tmp_path / "catalog.db"
    written(spools)
    stranger(spools / NAME)
    collector = Collector(spools, lambda: Catalog.open(database))
    with caplog.at_level(logging.ERROR, logger="checkengine.collector"):
        first, second = collector.try_once(), collector.try_once()
    collector.close()
    assert first is not None
    assert second is not None
    assert (first.records, first.passed_over, second.passed_over) == (3, 1, 1)
    assert [record.getMessage().startswith(f"{spools / NAME} is passed over: ") for record in caplog.records] == [True]
    assert os.path.lexists(spools / NAME)
    assert sequences(database) == 3
    assert not (tmp_path / "foreign").exists() or (tmp_path / "foreign").read_text() == "not yours\n"


def test_a_lock_that_is_a_link_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    (tmp_path / "collector.lock").symlink_to(tmp_path / "target")
    with pytest.raises(UserError, match=r"collector\.lock cannot be opened"):
        Collector(tmp_path, lambda: Catalog.open(tmp_path / "catalog.db"))


ROUND_ON_A_FULL_DISK = """
import logging, resource, signal, sys
from pathlib import Path
from checkengine.dashboards.collector import Collector
from checkengine.replay.catalog import Catalog, CatalogError
logging.basicConfig(stream=sys.stdout, format="%(message)s")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spools, database = map(Path, sys.argv[1:])
collector = Collector(spools, lambda: Catalog.open(database))
collector.try_once()
size = sum(file.stat().st_size for file in database.parent.glob("catalog.db*"))
with open(spools.parent / "more", "rb") as more:
    (spools / sys.stdin.read()).write_bytes(more.read())
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
print("full:", collector.try_once(), collector.try_once(), collector.totals.failures)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("room:", collector.try_once().records)
collector.close()
"""


def test_a_disk_that_is_full_under_the_catalog_loses_nothing_is_told_once_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    spools, database, later = tmp_path / "spools", tmp_path / "catalog.db", tmp_path / "later"
    written(spools)
    written(later, 500)
    (moved,) = later.glob("*.spool")
    moved.rename(tmp_path / "more")
    done = subprocess.run(
        [sys.executable, "-c", ROUND_ON_A_FULL_DISK, str(spools), str(database)],
        input=moved.name,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert [line for line in told if line.startswith(("full", "room"))] == ["full: None None 2", "room: 500"]
    assert sum("the catalog is down, the spools keep their records" in line for line in told) == 1
    assert sequences(database) == 503


@pytest.mark.parametrize(
    "wrong",
    [
        '"number":Infinity',
        '"number":1e999',
        '"number":99999999999999999999',
        '"number":-1',
        '"time":NaN',
        '"number":{}',
    ],
)
def test_a_record_with_a_number_that_no_database_takes_is_damaged_and_the_others_come_in(
    tmp_path: Path, wrong: str
) -> None:
    spools, database = tmp_path / "spools", tmp_path / "catalog.db"
    written(spools)
    (spool,) = spools.glob("*.spool")
    first, *others = spool.read_bytes().splitlines(keepends=True)
    field = wrong.partition(":")[0]
    payload = re.sub(rf"{field}:[^,]+", wrong, first.split(b" ", 2)[2].decode().rstrip(), count=1).encode()
    assert wrong.encode() in payload
    spool.write_bytes(b"%08x %d %s\n" % (zlib.crc32(payload), len(payload), payload) + b"".join(others))
    collector = Collector(spools, lambda: Catalog.open(database))
    done = collector.try_once()
    collector.close()
    assert done is not None
    assert (done.records, done.damaged) == (2, 1)


@pytest.mark.parametrize("error", [RuntimeError(), OSError(), CatalogError(""), KeyError("x")])
def test_whatever_a_round_raises_the_collector_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    spools, database = tmp_path / "spools", tmp_path / "catalog.db"
    written(spools)
    failing = [error]

    def after(catalog: Catalog, now: float) -> None:
        if failing:
            raise failing.pop()

    collector = Collector(spools, lambda: Catalog.open(database), after_round=[after])
    with caplog.at_level(logging.ERROR, logger="checkengine.collector"):
        assert collector.try_once() is None
        assert collector.try_once() is not None
    collector.close()
    assert len(caplog.records) == 1
    assert "the spools keep their records" in caplog.text
    assert sequences(database) == 3


def test_a_new_catalog_is_its_owners_alone(tmp_path: Path) -> None:
    Catalog.open(tmp_path / "catalog.db").close()
    assert {path.name: path.stat().st_mode & 0o077 for path in tmp_path.glob("catalog.db*")} == {
        "catalog.db": 0,
        "catalog.db.lock": 0,
    }
