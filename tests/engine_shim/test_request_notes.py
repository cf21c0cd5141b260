"""What is kept of a request: numbers and a chain over its rows' fingerprints, no content."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkengine.detectors.logits.stats import RowStats
from checkengine.engine_shim.request_notes import MOST_ENDED, RequestNotes, RequestRecords
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.events import SequenceEnded
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.step import SequenceStart
from checkengine.replay.bundle.privacy import DeploymentKey
from checkengine.replay.record import StepRecord

KEY = DeploymentKey(b"k" * 32)


def record(
    step: int, handles: list[int], prints: list[int], *, begun: tuple[str, ...] = (), ended: tuple[int, ...] = (),
    entropy: list[float] | None = None, margin: list[float] | None = None,
) -> StepRecord:  # fmt: skip
    ints, rows = np.array(handles, np.int32), len(handles)
    stats = RowStats(
        "full", np.zeros(rows, bool), np.zeros(rows, np.float32), np.zeros(rows, np.float32),
        entropy=None if entropy is None else np.array(entropy, np.float32),
        margin=None if margin is None else np.array(margin, np.float32),
    )  # fmt: skip
    starts = tuple(SequenceStart(place, name) for place, name in enumerate(begun))
    return StepRecord(
        step, 0, ints, np.ones(rows, np.int32), np.zeros(rows, np.int32), np.ones(rows, bool), ints,
        begun=starts, ended=ended, fingerprints=np.array(prints, np.uint64), stats=stats,
    )  # fmt: skip


def ended(name: str, **changes: Any) -> SequenceEnded:
    told: dict[str, Any] = {
        "sequence": name, "reason": "stop", "prompt_tokens": 7, "output_tokens": 3, "ttft_seconds": 0.1,
        "total_seconds": 0.9, "time": 5.0, "cached_tokens": 4,
    }  # fmt: skip
    return SequenceEnded(**(told | changes))


def chain(prints: list[list[int]], rows: int = 2) -> str:
    notes = RequestNotes()
    for step, row in enumerate(prints):
        begun = ("a-0", "b-0")[:rows] if not step else ()
        notes.step_done(record(step, list(range(rows)), row, begun=begun), (), ())
    spool: Any = None
    return str(RequestRecords(spool, notes, key=KEY).data(ended("a-0"))["fingerprint"])


def test_the_chain_is_of_a_requests_own_rows_in_their_order() -> None:
    assert chain([[1, 9], [2, 9]]) == chain([[1, 8], [2, 7]]), "a neighbour plays no part"
    assert chain([[1, 9], [2, 9]]) != chain([[2, 9], [1, 9]])
    assert chain([[1, 9], [2, 9]]) != chain([[1, 9], [3, 9]])
    assert chain([[(1 << 64) - 1], [2]], 1)


def test_numbers_of_rows_and_findings_are_kept_and_no_token(tmp_path: Path) -> None:
    notes, spool = RequestNotes(), SpoolWriter(tmp_path, replica="r", sync="never")
    records = RequestRecords(
        spool, notes, model="m", configuration="c", trace_of={"a-0": "t" * 32}.__getitem__, key=KEY
    )
    finding = Finding("text.salad", "a-0", Severity.WARNING, 1, 0, "salad", evidence={"nats": 12.5, "is": True})
    notes.step_done(record(0, [0], [1], begun=("a-0",), entropy=[2.0], margin=[0.5]), [finding], ())
    notes.step_done(record(1, [0], [2], entropy=[4.0], margin=[0.25]), (), ())
    records.handle(ended("a-0"))
    spool.close()
    (line,) = next(tmp_path.glob("*.spool")).read_bytes().splitlines()
    told = json.loads(line.split(b" ", 2)[2])
    assert (told["kind"], told["request"]) == ("request", "a-0")
    assert told["data"] | {"fingerprint": ""} == {
        "request": "a", "response": "a", "trace_id": "t" * 32, "model": "m", "configuration": "c",
        "finish_reason": "stop", "prompt_tokens": 7, "output_tokens": 3, "cached_tokens": 4, "ttft_seconds": 0.1,
        "total_seconds": 0.9, "fingerprint": "",
        "scores": {"salad": 12.5, "entropy mean": 3.0, "entropy max": 4.0, "margin min": 0.25},
    }  # fmt: skip


def test_a_sequence_that_left_the_engine_first_is_remembered_until_it_is_told_of() -> None:
    notes = RequestNotes()
    notes.step_done(record(0, [0], [1], begun=("a-0",), entropy=[2.0]), (), ())
    notes.step_done(record(1, [], [], ended=(0,)), (), ())
    note = notes.take("a-0")
    assert note is not None
    assert note.scores()["entropy max"] == 2.0
    assert notes.take("a-0") is None


def test_sequences_that_nobody_asks_for_fill_no_memory() -> None:
    notes = RequestNotes()
    for step in range(MOST_ENDED + 100):
        notes.step_done(record(step, [0], [1], begun=(f"s{step}-0",), ended=(0,)), (), ())
    assert len(notes._ended) == MOST_ENDED
    assert len(notes._live) == 1


@pytest.mark.parametrize("entropy", [math.nan, math.inf])
def test_a_row_that_is_not_finite_spoils_no_number(entropy: float) -> None:
    notes = RequestNotes()
    notes.step_done(record(0, [0], [1], begun=("a-0",), entropy=[1.0], margin=[1.0]), (), ())
    notes.step_done(record(1, [0], [1], entropy=[entropy], margin=[math.nan]), (), ())
    note = notes.take("a-0")
    assert note is not None
    assert all(math.isfinite(value) for value in note.scores().values())


def test_a_request_without_a_note_is_told_of_all_the_same() -> None:
    spool: Any = None
    told = RequestRecords(spool, RequestNotes(), key=KEY).data(ended("whole", output_tokens=0))
    assert (told["request"], told["scores"], told["fingerprint"], told["ttft_seconds"]) == ("whole", {}, "", None)
