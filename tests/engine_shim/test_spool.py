from __future__ import annotations

import errno
import math
import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.engine_shim import spool as spool_module
from checkengine.engine_shim.spool import SPOOLED, SpoolWriter, as_record
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.events import (
    ActionTaken,
    AuditJudged,
    BrakePulled,
    BundleWritten,
    Event,
    FindingRaised,
    GuardDisabled,
    StepMeasured,
)
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.spool_format import (
    MOST_LINE_BYTES,
    Progress,
    SpoolRecord,
    decode_line,
    encode_line,
    file_name,
    parse_name,
    read_records,
)


def finding(name: str = "ряд 7 🚨", **evidence: float) -> FindingRaised:
    return FindingRaised(
        Finding("logits.nonfinite", name, Severity.ERROR, 4, 2, "nonfinite", 1, evidence), "inc-1", 12.5, True
    )


EVENTS: list[Event] = [
    finding(nan=4, share=0.5),
    ActionTaken(Action(ActionKind.STOP, "a", "logits.nonfinite", "inc-1", 2), 13.0),
    BundleWritten("b-1", "inc-1", "/tmp/b-1", 14.0),
    AuditJudged(None, "a", 9, "code defect", 15.0),
    GuardDisabled("salad", "raised", 16.0),
    BrakePulled("salad", 5, 300.0, 17.0),
]


def read_all(directory: Path) -> list[SpoolRecord]:
    records: list[SpoolRecord] = []
    for path in sorted(directory.glob("*.spool")):
        progress = Progress()
        records += read_records(path, progress, most=10**9)
        assert progress.damaged == 0
    return records


def test_every_kind_of_spooled_event_comes_back_as_it_was(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, replica="host:1")
    for event in EVENTS:
        assert isinstance(event, SPOOLED)
        writer.handle(event)
    writer.close()
    records = read_all(tmp_path)
    assert [r.number for r in records] == [1, 2, 3, 4, 5, 6]
    assert {(r.boot, r.replica) for r in records} == {(writer.boot, "host:1")}
    assert [(r.kind, r.time, r.request, r.data) for r in records] == [as_record(event) for event in EVENTS]


def test_counters_do_not_belong_into_a_spool() -> None:
    with pytest.raises(TypeError, match="StepMeasured is not spooled"):
        as_record(StepMeasured(1, 1, 1, 0.1, 0.1, 1.0))


def test_evidence_that_is_not_finite_or_comes_from_numpy_survives_as_json(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    writer.handle(finding(worst=math.nan, low=-math.inf, count=np.int64(3), score=np.float32(0.5)))
    writer.close()
    assert read_all(tmp_path)[0].data["evidence"] == {"worst": "nan", "low": "-inf", "count": 3, "score": 0.5}
    assert writer.dropped == 0


names = st.text(max_size=30)
records = st.builds(
    SpoolRecord,
    st.just("0" * 16),
    st.integers(0, 2**62),
    names,
    st.floats(allow_nan=False, allow_infinity=False),
    names,
    names,
    st.dictionaries(
        names, st.one_of(names, st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
    ),
)


@settings(deadline=None)
@given(records)
def test_a_record_survives_its_line(record: SpoolRecord) -> None:
    line = encode_line(record)
    assert line.count(b"\n") == 1
    assert decode_line(line[:-1]) == record


@settings(max_examples=40, deadline=None)
@given(st.lists(records, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_torn_tail_is_left_until_it_is_whole_and_reading_resumes(
    tmp_path_factory: pytest.TempPathFactory, written: list[SpoolRecord], chance: random.Random
) -> None:
    path = tmp_path_factory.mktemp("spool") / file_name("0" * 16, 0)
    data = b"".join(encode_line(record) for record in written)
    cut = chance.randrange(len(data) + 1)
    path.write_bytes(data[:cut])
    progress = Progress()
    first = read_records(path, progress, most=chance.randrange(1, 8))
    path.write_bytes(data)
    while more := read_records(path, progress, most=2):
        first += more
    assert first == written
    assert progress == Progress(len(data), 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(records, min_size=3, max_size=6), st.randoms(use_true_random=False))
def test_a_changed_byte_costs_its_own_record_and_is_counted(
    tmp_path_factory: pytest.TempPathFactory, written: list[SpoolRecord], chance: random.Random
) -> None:
    path = tmp_path_factory.mktemp("spool") / file_name("0" * 16, 0)
    lines = [encode_line(record) for record in written]
    victim = chance.randrange(len(lines))
    at = chance.randrange(len(lines[victim]) - 1)
    changed = bytearray(lines[victim])
    changed[at] = changed[at] ^ 1 if changed[at] ^ 1 != 0x0A else changed[at] ^ 2
    lines[victim] = bytes(changed)
    path.write_bytes(b"".join(lines))
    progress = Progress()
    assert read_records(path, progress) == written[:victim] + written[victim + 1 :]
    assert progress.damaged == 1


def test_an_endless_line_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / file_name("0" * 16, 0)
    good = encode_line(SpoolRecord("0" * 16, 1, "audit", 1.0))
    path.write_bytes(good + b"x" * (9 * MOST_LINE_BYTES) + b"\n" + good)
    progress = Progress()
    assert len(read_records(path, progress)) == 2
    assert progress.damaged == 1


def test_files_rotate_and_numbers_go_on(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, rotate_bytes=600)
    for _ in range(20):
        writer.handle(finding())
    writer.close()
    files = sorted(tmp_path.glob("*.spool"))
    assert len(files) > 5
    assert all(path.stat().st_size <= 600 for path in files)
    assert [parse_name(path.name) for path in files] == [(writer.boot, index) for index in range(len(files))]
    assert [record.number for record in read_all(tmp_path)] == list(range(1, 21))


def test_a_full_spool_drops_new_records_counts_them_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, rotate_bytes=600, most_bytes=2000)
    for _ in range(30):
        writer.handle(finding())
    kept = read_all(tmp_path)
    assert 0 < len(kept) < 30
    assert writer.dropped == 30 - len(kept)
    assert [record.number for record in kept] == list(range(1, len(kept) + 1))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.spool")) <= 2000
    for path in sorted(tmp_path.glob("*.spool"))[:-1]:
        path.unlink()
    writer.handle(finding())
    assert read_all(tmp_path)[-1].number == 31
    assert writer.dropped == 30 - len(kept)


def test_a_file_that_the_collector_removes_while_the_bound_is_counted_costs_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(tmp_path, rotate_bytes=300, sync="never")
    for number in range(5):
        writer.append("finding", float(number), "r", {"n": number})
    listed = Path.glob

    def glob(self: Path, pattern: str) -> list[Path]:
        """The collector comes between the list of files and the look at each."""
        found = list(listed(self, pattern))
        for path in found[:-1]:
            path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "glob", glob)
    for number in range(5):
        writer.append("finding", float(number), "r", {"n": number})
    writer.close()
    assert writer.dropped == 0


def test_a_full_disk_costs_the_record_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SpoolWriter(tmp_path)
    writer.handle(finding())
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        real(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spool_module.os, "write", full)
        writer.handle(finding())
        patch.setattr(spool_module.os, "write", lambda descriptor, data: real(descriptor, data[:7]))
        writer.handle(finding())
    writer.handle(finding())
    assert writer.dropped == 2
    assert [record.number for record in read_all(tmp_path)] == [1, 4]


def test_what_json_cannot_carry_is_dropped_and_never_raised(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    writer.append("audit", 1.0, data={"object": object()})
    writer.append("audit", 1.0, data={"huge": "x" * MOST_LINE_BYTES})
    writer.append("audit", 1.0)
    assert writer.dropped == 2
    assert [record.number for record in read_all(tmp_path)] == [3]


def test_each_policy_of_sync_flushes_when_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(spool_module.os, "fdatasync", flushed.append)
    now = [100.0]
    counts = {}
    for policy in ("record", "second", "never"):
        flushed.clear()
        writer = SpoolWriter(tmp_path, sync=policy, clock=lambda: now[0])  # type: ignore[arg-type]
        for moment in (0.2, 0.4, 1.1, 1.2, 2.4):
            now[0] = 100.0 + moment
            writer.handle(finding())
        now[0] = 100.0
        counts[policy] = len(flushed)
        writer.close()
    assert counts == {"record": 5, "second": 2, "never": 0}


def test_a_spool_that_cannot_be_made_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        SpoolWriter(tmp_path / "file" / "spool")


def test_a_request_s_name_of_any_length_takes_no_more_room_than_the_catalog_keeps(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path)
    spool.append("request", 1.0, "x" * 300_000)
    spool.close()
    assert [record.request for record in read_all(tmp_path)] == ["x" * 512]
