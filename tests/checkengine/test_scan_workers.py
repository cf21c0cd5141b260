"""`checkengine scan --workers N`: the order of one process, and no line lost with a process that is killed."""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from checkengine.guards.errors import UserError
from checkengine.guards.settings import GuardsSettings
from checkengine.scanning.chunks import Fault, chunked
from checkengine.scanning.finding_lines import Found
from checkengine.scanning.lines import Line
from checkengine.scanning.scan import Scan
from checkengine.scanning.workers import AHEAD, Setup, Workers

SETUP = Setup(("logits",), GuardsSettings())
DEADLY_SETUP = '''
import os, signal
from checkengine.scanning.workers import Setup

class DeadlyReader:
    """Kills its process on the record "deadly"."""
    def __init__(self, reader):
        self.reader = reader
        self.account = None
    def read(self, record):
        if record.id == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return self.reader.read(record)

class DeadlySetup(Setup):
    def reader(self):
        return DeadlyReader(super().reader())

class StillbornSetup(Setup):
    def reader(self):
        os._exit(3)
'''


def line(number: int, identity: object) -> Line:
    row = {"id": identity, "completion": "x", "logprobs": {"content": [{"logprob": float("nan")}]}}
    return Line("log", number, json.dumps(row).encode())


def chunks_of(identities: Sequence[object], most: int = 4) -> Iterator[list[Line]]:
    return chunked((line(number, each) for number, each in enumerate(identities, 1)), most)


def told(workers: Workers, chunks: Iterator[list[Line]]) -> list[object]:
    """Ids of findings and numbers of lines given up, in the order of the output."""
    events = [event for reading in workers.read(chunks) for event in reading.events]
    return [event.owner if isinstance(event, Found) else (event.number,) for event in events if _is_told(event)]


def _is_told(event: object) -> bool:
    return isinstance(event, Found | Fault)


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A module that the processes can import as well."""
    (tmp_path / "deadly_setup.py").write_text(DEADLY_SETUP)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("deadly_setup")


def test_findings_come_in_the_order_of_the_lines() -> None:
    with Workers(SETUP, 2) as workers:
        assert told(workers, chunks_of(range(200))) == list(range(200))


def test_a_process_that_is_killed_between_lines_loses_none() -> None:
    with Workers(SETUP, 2) as workers:

        def chunks() -> Iterator[list[Line]]:
            for index, chunk in enumerate(chunks_of(range(100))):
                if index in (5, 9, 14):
                    os.kill(workers.process_ids[0], signal.SIGKILL)
                yield chunk

        assert told(workers, chunks()) == list(range(100))


def test_a_line_that_kills_its_process_twice_is_given_up_and_told_in_its_place(deadly: object) -> None:
    setup = deadly.DeadlySetup(("logits",), GuardsSettings())  # type: ignore[attr-defined]
    with Workers(setup, 2) as workers:
        assert told(workers, chunks_of([0, 1, "deadly", 3, 4, 5, 6, 7, 8, "deadly"])) == [
            *(0, 1, (3,), 3, 4, 5, 6, 7, 8, (10,))
        ]


def test_processes_that_end_as_they_start_are_one_clear_error_and_no_endless_loop(deadly: object) -> None:
    setup = deadly.StillbornSetup(("logits",), GuardsSettings())  # type: ignore[attr-defined]
    with Workers(setup, 2) as workers, pytest.raises(UserError, match="end as soon as they start"):
        list(workers.read(chunks_of(range(50))))


def test_no_more_chunks_are_read_ahead_than_are_bounded() -> None:
    asked = []

    def chunks() -> Iterator[list[Line]]:
        for chunk in chunks_of(range(400)):
            asked.append(chunk)
            yield chunk

    with Workers(SETUP, 2) as workers:
        for given, _ in enumerate(workers.read(chunks()), 1):
            assert len(asked) <= given + AHEAD * 2


def test_the_processes_end_with_the_scan() -> None:
    with Workers(SETUP, 2) as workers:
        next(workers.read(chunks_of(range(50))))
        processes = workers.process_ids
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_one_process_and_two_write_the_same_lines(tmp_path: Path) -> None:
    rows = [line(0, n).data for n in range(300)] + [b"{bad", b'{"id": 1, "messages": []}']
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join(rows))
    written: dict[int, tuple[list[str], list[str]]] = {}
    for count in (1, 2):
        out: list[str] = []
        err: list[str] = []
        totals = Scan(SETUP, out.append, err.append).run([str(path)], count)
        written[count] = (out, err)
        assert (totals.lines, totals.bad, totals.findings.total()) == (302, 1, 300)
    assert written[1] == written[2]
