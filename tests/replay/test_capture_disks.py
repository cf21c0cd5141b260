"""Disks that are full or read-only, for real where this process may mount one."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_engine import SmallEngine

from checkengine.engine_shim.bundles import ALARM_SECONDS, PAUSE_SECONDS, BundleWriter
from checkengine.guards.bus import EventBus
from checkengine.guards.incident import IncidentBook
from checkengine.replay.bundle import BundleReader, bundles_in
from checkengine.replay.capture import Capture, new_identifier
from checkengine.replay.settings import CaptureSettings


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("this process may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))


def capture() -> Capture:
    engine = SmallEngine(seed=3)
    engine.run(12)
    taken = engine.capture([int(engine.records[-1].handles[0])])
    taken.identifier, taken.time = new_identifier(), 1.7e9
    return taken


def writer_into(directory: Path, clock: Clock) -> BundleWriter:
    return BundleWriter(CaptureSettings(directory=directory), EventBus(), IncidentBook(), clock=clock)


def refused(writer: BundleWriter, times: int, clock: Clock, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Try that often, each time as soon as the writer is willing; the error lines of the log."""
    with caplog.at_level(logging.ERROR, logger="checkengine.capture"):
        for _ in range(times):
            assert writer.write(capture()) is False
            assert not writer.ready()
            clock.now += PAUSE_SECONDS
            assert writer.ready()
    assert writer.counts.outcomes()["failed"] == times
    assert all(record.exc_info is None for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


def test_a_full_disk_is_counted_and_told_once_and_the_next_bundle_is_written_when_there_is_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    writer = writer_into(small_disk / "bundles", clock)
    (small_disk / "filler").write_bytes(bytes((64 << 10) - 4096))
    (line,) = refused(writer, 4, clock, caplog)
    assert "No space left on device" in line
    assert bundles_in(small_disk / "bundles") == []
    assert not list((small_disk / "bundles").glob("*"))
    os.unlink(small_disk / "filler")
    assert writer.write(capture()) is True
    (path,) = bundles_in(small_disk / "bundles")
    BundleReader(path).verify()
    assert writer.counts.outcomes()["written"] == 1
    assert writer.counts.levels() == {"L3": 1}


def test_a_read_only_disk_is_counted_and_told_once(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    clock = Clock()
    (line,) = refused(writer_into(small_disk / "bundles", clock), 3, clock, caplog)
    assert "Read-only file system" in line
    assert "choose a writable [capture] directory" in line


def test_a_disk_that_goes_on_refusing_is_told_again_after_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    clock = Clock()
    times = int(ALARM_SECONDS / PAUSE_SECONDS) + 2
    lines = refused(writer_into(tmp_path / "file" / "bundles", clock), times, clock, caplog)
    assert len(lines) == 2
    assert "(10 since the last such line)" in lines[1]


def test_an_error_of_our_own_does_not_read_as_one_of_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = capture()
    taken.environment = {"engine": object()}
    writer = writer_into(tmp_path, Clock())
    with caplog.at_level(logging.ERROR, logger="checkengine.capture"):
        assert writer.write(taken) is False
    assert writer.ready()
    assert "cannot carry" in caplog.text
