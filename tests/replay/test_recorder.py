from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.guards.step import SequenceStart
from checkengine.replay.capture import Capture, unknown_histories
from checkengine.replay.executor import ReplayError
from checkengine.replay.memory import MemoryImage
from checkengine.replay.record import BlockTables, StepRecord
from checkengine.replay.recorded import pack_tables
from checkengine.replay.recorder import Recorder

BLOCK_SIZE = 4


@dataclass
class Schedule:
    """A naive engine: keeps everything, in plain Python."""

    random: random.Random
    tables: dict[int, list[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    starts: dict[int, SequenceStart] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)
    tables_of: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    next_handle: int = 0

    def step(self) -> StepRecord:
        number = len(self.records)
        changes: list[tuple[int, int, int]] = []
        begun, ended = [], []
        for handle in list(self.tables):
            chance = self.random.random()
            if chance < 0.1:
                del self.tables[handle], self.lengths[handle]
                ended.append(handle)
            elif chance < 0.2 and self.tables[handle]:
                cut = self.random.randrange(len(self.tables[handle]))
                del self.tables[handle][cut:]
                changes.append((handle, cut, -1))
                self.lengths[handle] = min(self.lengths[handle], cut * BLOCK_SIZE)
        while len(self.tables) < 1 or self.random.random() < 0.2:
            prompt = tuple(range(self.random.randrange(1, 30)))
            start = SequenceStart(self.next_handle, f"requête-{self.next_handle}", prompt, {"seed": self.next_handle})
            self.next_handle += 1
            self.starts[start.handle] = start
            self.tables[start.handle], self.lengths[start.handle] = [], 0
            begun.append(start)
        rows = self.random.sample(list(self.tables), self.random.randrange(1, len(self.tables) + 1))
        counts = [self.random.randrange(1, 7) for _ in rows]
        cached = [self.lengths[row] for row in rows]
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count
            while len(self.tables[row]) * BLOCK_SIZE < self.lengths[row]:
                block = self.random.randrange(1000)
                changes.append((row, len(self.tables[row]), block))
                self.tables[row].append(block)
        samples = np.array([self.random.random() < 0.8 for _ in rows])
        tables = {handle: list(table) for handle, table in self.tables.items()}
        record = StepRecord(
            step=number,
            time_ns=number * 1000,
            handles=np.array(rows, np.int32),
            query_lengths=np.array(counts, np.int32),
            starts=np.array(cached, np.int32),
            samples=samples,
            token_ids=np.array([self.random.randrange(49152) for _ in range(sum(counts))], np.int32),
            block_changes=np.array(changes, np.int32).reshape(-1, 3),
            tables=lambda: pack_tables({h: np.array(t, np.int32) for h, t in tables.items()}),
            begun=tuple(begun),
            ended=tuple(ended),
            kernel=self.random.choice(["paged", "reference"]),
        )
        self.records.append(record)
        self.tables_of[number] = tables
        return record

    def outcome(self, record: StepRecord) -> None:
        sampling = int(record.samples.sum())
        record.sampled = np.array([self.random.randrange(49152) for _ in range(sampling)], np.int32)
        record.fingerprints = np.array([self.random.getrandbits(64) for _ in range(sampling)], np.uint64)


def listed(tables: Mapping[int, object]) -> dict[int, list[int]]:
    """Without the sequences that hold no block yet: a window need not know of them."""
    return {handle: np.asarray(table).tolist() for handle, table in tables.items() if len(table)}


ARRAYS = ("handles", "query_lengths", "starts", "samples", "token_ids", "block_changes", "fingerprints", "sampled")


def assert_equal(read: StepRecord, written: StepRecord) -> None:
    for name in ARRAYS:
        assert getattr(read, name).dtype == getattr(written, name).dtype
        assert np.array_equal(getattr(read, name), getattr(written, name)), name
    for name in ("step", "time_ns", "begun", "ended", "kernel"):
        assert getattr(read, name) == getattr(written, name), name


def run(recorder: Recorder, schedule: Schedule, steps: int, level_screen_every: int = 4) -> None:
    for number in range(steps):
        record = schedule.step()
        recorder.begin(record)
        schedule.outcome(record)
        if number % level_screen_every == 0:
            record.fingerprints = np.empty(0, np.uint64)
        recorder.finish(record.step, record.fingerprints, record.sampled)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(4, 40), st.integers(3, 60), st.integers(1, 12))
def test_a_window_equals_what_a_naive_recorder_kept(
    seed: int, steps: int, ring_steps: int, kilobytes: int, checkpoint_every: int
) -> None:
    schedule, recorder = Schedule(random.Random(seed)), Recorder(ring_steps, kilobytes << 10, checkpoint_every)
    run(recorder, schedule, steps)
    window = recorder.window()
    assert window.dropped == recorder.dropped == 0
    assert len(window) <= ring_steps
    expected = schedule.records[len(schedule.records) - len(window) :]
    for read, written in zip(window.records, expected, strict=True):
        assert_equal(read, written)
    for record, tables in window.walk():
        assert listed(tables) == listed(schedule.tables_of[record.step])
        assert set(record.handles.tolist()) <= window.starts.keys()
    assert all(window.starts[handle] == schedule.starts[handle] for handle in window.starts)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 200))
def test_a_window_from_a_step_on_has_the_same_tables_as_the_whole_one(seed: int, first_step: int) -> None:
    schedule, recorder = Schedule(random.Random(seed)), Recorder(40, 1 << 20, 8)
    run(recorder, schedule, 60)
    whole, part = recorder.window(), recorder.window(first_step)
    assert [record.step for record in part.records] == [r.step for r in whole.records if r.step >= first_step]
    for record in part.records:
        tables = part.tables_at(record.step)
        assert listed(tables) == listed(schedule.tables_of[record.step])


def test_the_ring_keeps_at_least_three_quarters_of_its_steps_usable() -> None:
    schedule, recorder = Schedule(random.Random(3)), Recorder(64, 1 << 20, 256)
    run(recorder, schedule, 500)
    assert len(recorder.window()) >= 48


def test_a_step_larger_than_the_ring_is_counted_and_the_window_begins_after_it() -> None:
    schedule, recorder = Schedule(random.Random(3)), Recorder(64, 64 << 10, 8)
    run(recorder, schedule, 10)
    huge = replace(schedule.step(), query_lengths=np.full(1, 50_000, np.int32), token_ids=np.zeros(50_000, np.int32))
    recorder.begin(huge)
    recorder.finish(huge.step, None, np.zeros(int(huge.samples.sum()), np.int32))
    assert recorder.dropped == 1
    assert len(recorder.window()) == 0
    run(recorder, schedule, 5)
    window = recorder.window()
    assert window.dropped == 1
    assert [record.step for record in window.records] == [record.step for record in schedule.records[-5:]]
    assert listed(window.tables_at(window.last_step)) == listed(schedule.tables)


def broken_tables() -> BlockTables:
    raise RuntimeError("the engine's tables are broken")


@pytest.mark.parametrize(
    "damage",
    [
        {"tables": broken_tables},
        {"handles": np.array(["a"], object)},
        {"token_ids": None},
        {"token_ids": np.zeros((3, 3), np.int32)},
        {"begun": (None,)},
        {"block_changes": np.zeros((2, 3), np.float64)},
    ],
)
def test_a_malformed_record_is_counted_and_never_raises_into_the_engine(damage: dict[str, object]) -> None:
    schedule, recorder = Schedule(random.Random(3)), Recorder(64, 64 << 10, 1)
    run(recorder, schedule, 3)
    recorder.begin(replace(schedule.step(), **damage))
    assert recorder.dropped == 1
    run(recorder, schedule, 3)
    assert len(recorder.window()) == 3


def test_an_outcome_of_the_wrong_length_is_counted_and_leaves_the_step_without_outcome() -> None:
    schedule, recorder = Schedule(random.Random(5)), Recorder()
    record = schedule.step()
    recorder.begin(record)
    recorder.finish(record.step, None, np.zeros(99, np.int32))
    recorder.finish(12345, None, np.zeros(1, np.int32))
    assert recorder.dropped == 1
    assert len(recorder.window().records[0].sampled) == 0


def test_steps_that_ran_while_recording_was_off_end_the_window_and_are_no_drop() -> None:
    schedule, recorder = Schedule(random.Random(5)), Recorder()
    run(recorder, schedule, 10)
    for _ in range(6):
        recorder.skip(schedule.step())
    run(recorder, schedule, 5)
    window = recorder.window()
    assert recorder.dropped == 0
    assert [record.step for record in window.records] == list(range(16, 21))
    for record, tables in window.walk():
        assert listed(tables) == listed(schedule.tables_of[record.step])
        assert all(window.starts[handle] == schedule.starts[handle] for handle in record.handles.tolist())


def test_a_sequence_whose_begin_was_never_told_has_a_name_and_no_known_history() -> None:
    schedule, recorder = Schedule(random.Random(5)), Recorder()
    for _ in range(6):
        schedule.step()
    run(recorder, schedule, 1)
    window = recorder.window()
    old = [handle for handle in window.records[0].handles.tolist() if window.starts[handle].name.startswith("unknown-")]
    assert old
    memory = MemoryImage(BLOCK_SIZE, np.empty(0, np.int32), {}, {})
    started = set(window.records[0].handles[window.records[0].starts > 0].tolist())
    assert unknown_histories(Capture(window, memory, frozenset(old))) == started & set(old)


def test_an_empty_recorder_gives_an_empty_window_and_says_so() -> None:
    window = Recorder().window()
    assert len(window) == 0
    with pytest.raises(ReplayError, match="empty"):
        _ = window.first_step
    with pytest.raises(ReplayError, match="not in the recorded window"):
        window.tables_at(3)


def test_prompts_of_ended_sequences_stay_only_while_records_name_them() -> None:
    schedule, recorder = Schedule(random.Random(5)), Recorder(16, 1 << 20, 4)
    run(recorder, schedule, 400)
    assert len(recorder._ended) <= 16 * 4
    assert schedule.next_handle > 60
    assert len(recorder._starts) == len(schedule.tables)


def test_prompts_of_ended_sequences_stay_within_their_share_of_the_bytes() -> None:
    recorder = Recorder(4096, 64 << 10, 4)
    for step in range(200):
        handle = np.array([step], np.int32)
        start = SequenceStart(step, f"s{step}", tuple(range(1000)))
        one, table = np.ones(1, np.int32), pack_tables({step: np.zeros(1, np.int32)})
        ended = (step - 1,) if step else ()
        recorder.begin(
            StepRecord(
                step, 0, handle, one, one, one.astype(bool), one, tables=lambda t=table: t, begun=(start,), ended=ended
            )
        )
    assert recorder.dropped == 0
    assert recorder._prompt_bytes <= 16 << 10
    window = recorder.window()
    assert 1 <= len(window) <= 6
    assert all(len(start.prompt_tokens) == 1000 for start in window.starts.values())


def test_windows_taken_while_the_engine_writes_are_whole() -> None:
    schedule, recorder = Schedule(random.Random(11)), Recorder(32, 96 << 10, 4)
    done = threading.Event()
    records: list[StepRecord] = []

    def serve() -> None:
        try:
            for _ in range(1500):
                record = schedule.step()
                recorder.begin(record)
                schedule.outcome(record)
                records.append(record)
                recorder.finish(record.step, record.fingerprints, record.sampled)
        finally:
            done.set()

    engine = threading.Thread(target=serve)
    engine.start()
    taken = []
    while not done.is_set():
        window = recorder.window()
        taken.append(window)
    engine.join()
    assert recorder.dropped == 0
    written = {record.step: record for record in records}
    for window in taken:
        for record, tables in window.walk():
            if not len(record.sampled) and record.samples.any():
                assert record.step == window.last_step
                continue
            assert_equal(record, written[record.step])
            assert listed(tables) == listed(schedule.tables_of[record.step])
