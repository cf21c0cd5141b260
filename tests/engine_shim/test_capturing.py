"""Captures on the embedded engine: steps after the trigger, armed conditions, disks that refuse, exact counts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from checkengine.detectors.logits import row_stats
from checkengine.engine_shim.capturing import Budget, CaptureOnFinding
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.capture import Capture
from checkengine.replay.fault_limit import FaultLimit
from checkengine.replay.recorder import Recorder
from checkengine.replay.replayer import Replayer
from checkengine.replay.undo import UndoRing
from checkengine.replay.windows import window_of_all_rows
from checkengine.tiny import tiny_model

MODEL = tiny_model(layers=2)
Plan = Callable[[Any], tuple[list[Finding], list[Action]]]


class WatchedShim:
    """Records every step and tells the captures of what the test plans for it."""

    def __init__(self, plan: Plan) -> None:
        self.recorder, self.plan = Recorder(256, 2 << 20), plan
        self.captures: CaptureOnFinding | None = None

    def step(self, record):
        self.record = record
        self.recorder.begin(record)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        pass

    def logits(self, logits) -> None:
        self.record.stats = row_stats(logits, "full") if len(logits) else None

    def tokens(self, tokens):
        stats = self.record.stats
        self.record.sampled = tokens
        self.recorder.finish(self.record.step, stats.fingerprint if stats else None, tokens)
        findings, actions = self.plan(self.record)
        assert self.captures is not None
        self.captures.step_done(self.record, findings, actions)
        return actions


class Served:
    def __init__(self, plan: Plan, *, lengths=(30, 12, 30, 30), write: Any = None, **options: Any) -> None:
        self.taken: list[Capture] = []
        self.shim = WatchedShim(plan)
        settings = EngineSettings(block_size=8, blocks=40, tokens_per_step=24, threads=1)
        self.engine = Engine(MODEL, None, settings, self.shim, UndoRing(64, 8 << 20))  # type: ignore[arg-type]
        self.captures = self.shim.captures = CaptureOnFinding(
            self.engine,
            self.shim.recorder,
            write or self.taken.append,  # type: ignore[arg-type]
            **{"incident_of": lambda sequence: f"incident-{sequence}", "window_steps": 16, "waiting": 8} | options,
        )
        random = np.random.default_rng(2)
        for number, length in enumerate(lengths):
            prompt = random.integers(0, 150, 12).tolist()
            sampling = SamplingParameters(temperature=0.8, seed=number, max_tokens=length)
            self.engine.submit(GenerationRequest(f"r{number}", prompt, sampling))

    def run(self) -> Served:
        while self.engine.has_work:
            self.engine.step()
        self.captures.close()
        return self

    def replayed(self) -> Any:
        (capture,) = self.taken
        return Replayer(EmbeddedExecutor.over(MODEL, self.engine.environment()), capture).replay()


def finding(sequence: str, step: int, kind: str = "language.switch") -> Finding:
    return Finding(kind, sequence, Severity.WARNING, step, 1, "test")


def planned(step: int, sequence: str, *actions: Action) -> Plan:
    def plan(record):
        return ([finding(sequence, step)], list(actions)) if record.step == step else ([], [])

    return plan


def nothing(record):
    return [], []


@pytest.mark.parametrize("after", [0, 1, 9])
def test_a_bundle_holds_the_steps_after_the_trigger_and_replays_bit_for_bit(after: int) -> None:
    served = Served(planned(15, "r2"), after_steps=after).run()
    (capture,) = served.taken
    assert capture.window.last_step == 15 + after
    assert capture.findings[0].step == 15
    replay = served.replayed()
    assert replay.bit_exact
    assert replay.exact_from == "undo"
    assert replay.strip[-1].step == 15 + after
    assert replay.strip[-1].rows == 1


def test_the_tokens_of_a_sequence_that_ends_after_the_trigger_are_saved_at_the_trigger() -> None:
    served = Served(planned(11, "r1"), after_steps=12, window_steps=4).run()
    (capture,) = served.taken
    assert capture.window.last_step < 11 + 12
    handle = next(handle for handle, start in capture.window.starts.items() if start.name == "r1")
    assert len(capture.histories[handle]) > 0
    assert served.replayed().bit_exact


def test_a_sequence_that_is_stopped_is_captured_at_once() -> None:
    """Its blocks may be refilled before the next step."""
    served = Served(planned(15, "r2", Action(ActionKind.STOP, "r2", "language.switch", "i", 1)), after_steps=9).run()
    assert [capture.window.last_step for capture in served.taken] == [15]


def test_findings_in_the_steps_after_the_trigger_are_in_the_bundle() -> None:
    def plan(record):
        found = {15: [finding("r2", 15)], 18: [finding("r2", 18, "text.salad"), finding("r3", 18, "text.salad")]}
        return found.get(record.step, []), []

    served = Served(plan, after_steps=5, incident_of=lambda sequence: "one").run()
    (capture,) = served.taken
    assert [(each.sequence, each.step) for each in capture.findings] == [("r2", 15), ("r2", 18)]


def test_a_capture_that_waits_for_steps_when_the_engine_is_closed_is_taken_as_it_is() -> None:
    served = Served(planned(24, "r2"), after_steps=1000)
    while served.engine.has_work:
        served.engine.step()
        if served.engine.steps == 26:
            break
    served.captures.close()
    assert [capture.window.last_step for capture in served.taken] == [25]
    assert served.replayed().bit_exact


def test_captures_that_wait_for_steps_count_against_those_that_may_wait() -> None:
    def plan(record):
        return ([finding(f"r{number}", 8) for number in range(4)], []) if record.step == 8 else ([], [])

    served = Served(plan, after_steps=3, waiting=2).run()
    assert len(served.taken) == 2
    assert served.captures.dropped == 2


# Armed conditions


def armed(when: str, plan: Plan = nothing, *, most: int = 1, level: str = "L3", seconds: float = 60.0, **options: Any):
    served = Served(plan, **options)
    arming = served.captures.armings.made(when, level=level, seconds=seconds, most=most, now=time.time())
    served.captures.armings.add(arming, time.time())
    return served.run(), arming


def test_a_healthy_step_that_meets_an_armed_condition_is_captured_and_replays() -> None:
    served, arming = armed("length == 17")
    (capture,) = served.taken
    assert (capture.findings, capture.incident) == ((), "incident-r0")
    assert capture.environment["armed"] == arming.identifier
    record = capture.window.records[-1]
    (handle,) = arming.captured
    row = record.handles.tolist().index(handle)
    assert int(record.starts[row] + record.query_lengths[row]) == 17
    assert served.replayed().bit_exact


def test_an_armed_condition_takes_each_sequence_once_and_no_more_than_asked_for() -> None:
    served, arming = armed("length >= 14", most=3)
    assert len(served.taken) == 3
    assert len(arming.captured) == 3
    assert not served.captures.armings.active(time.time())


@pytest.mark.parametrize(
    ("when", "sequence"),
    [
        ('request == "r2" and entropy > 0', "r2"),
        ("margin < 0.4 and length > 20", None),
        ('kind == "text.salad"', "r3"),
        ('guard in ("nobody", "test")', "r3"),
        ("batch == 4 and tokens == 1", None),
    ],
)
def test_conditions_see_names_numbers_and_findings(when: str, sequence: str | None) -> None:
    def plan(record):
        return ([finding("r3", 9, "text.salad")], []) if record.step == 9 else ([], [])

    served, arming = armed(when, plan, incident_of=lambda sequence: None)
    (capture,) = served.taken
    (handle,) = arming.captured
    assert sequence in (None, capture.window.starts[handle].name)
    assert [each.kind for each in capture.findings] == (["text.salad"] if "kind" in when or "guard" in when else [])


def test_a_prefix_hit_is_seen_in_the_first_step_of_its_row() -> None:
    served = Served(nothing, lengths=(4,))
    while served.engine.has_work:
        served.engine.step()
    prompt = np.random.default_rng(2).integers(0, 150, 12).tolist()
    arming = served.captures.armings.made("prefix_hit", level="L3", seconds=60, most=2, now=time.time())
    served.captures.armings.add(arming, time.time())
    sampling = SamplingParameters(temperature=0.0, max_tokens=4)
    served.engine.submit(GenerationRequest("again", [*prompt, 7, 8], sampling))
    served.engine.submit(GenerationRequest("other", [1, 2, 3], sampling))
    served.run()
    (capture,) = served.taken
    (handle,) = arming.captured
    assert capture.window.starts[handle].name == "again"


def test_an_armed_condition_ends_by_itself() -> None:
    served, _ = armed("length >= 14", seconds=1e-9)
    assert served.taken == []


def test_armed_captures_keep_to_the_limits_of_faults_and_of_bytes() -> None:
    served, _ = armed("length >= 14", most=4, limit=FaultLimit(1, 3600.0), budget=Budget("L1", 0))
    assert [capture.level for capture in served.taken] == ["L0"]
    assert served.captures.duplicates == 1


def test_what_is_disarmed_is_not_captured() -> None:
    served = Served(nothing)
    arming = served.captures.armings.made("length >= 14", level="L3", seconds=60, most=1, now=time.time())
    served.captures.armings.add(arming, time.time())
    assert served.captures.armings.disarm(arming.identifier) is arming
    assert served.captures.armings.disarm(arming.identifier) is None
    assert served.run().taken == []


# Disks and counts


def test_every_trigger_is_counted_once_whatever_becomes_of_it() -> None:
    hold, begun = threading.Event(), threading.Event()

    def write(capture: Capture) -> bool:
        begun.set()
        hold.wait(30)
        return capture.findings[0].sequence != "r1"

    def plan(record):
        if record.step == 9:
            begun.wait(30)
        if record.step not in (8, 9):
            return [], []
        kinds = {"r0": "a", "r1": "b", "r2": "b", "r3": "c"} if record.step == 9 else {"r0": "a"}
        return [finding(name, record.step, kind) for name, kind in kinds.items()], []

    incidents = iter(range(100))
    served = Served(plan, write=write, waiting=2, limit=FaultLimit(1, 1e9), incident_of=lambda _: f"i{next(incidents)}")
    while served.engine.has_work:
        served.engine.step()
    hold.set()
    served.captures.close()
    outcomes = served.captures.counts.outcomes()
    assert outcomes["duplicate"] == 2
    assert outcomes["dropped"] == 0
    assert len(served.captures._refused) == 1
    assert served.captures._handed == served.captures._taken == 3


def test_after_the_disk_refused_a_bundle_nothing_is_cloned_until_it_may_be_willing_again() -> None:
    willing = [True]
    written = threading.Event()

    def write(capture: Capture) -> bool:
        willing[0] = False
        written.set()
        return False

    def plan(record):
        if record.step == 9:
            assert written.wait(30)
        if record.step == 20:
            willing[0] = True
        return ([finding("r0", record.step)], []) if record.step in (8, 9, 10, 20) else ([], [])

    served = Served(plan, write=write, ready=lambda: willing[0], limit=FaultLimit(2, 1e9))
    snapshots = []
    real = served.engine.snapshot
    served.engine.snapshot = lambda blocks: snapshots.append(served.engine.steps) or real(blocks)  # type: ignore
    served.run()
    assert served.captures.counts.outcomes()["skipped"] == 2
    assert sorted(set(snapshots)) == [8, 20]
    assert served.captures.duplicates == 0


def test_a_writer_that_raises_is_counted_and_the_next_capture_is_written(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[Capture] = []

    def write(capture: Capture) -> None:
        taken.append(capture)
        if len(taken) == 1:
            raise RuntimeError("planted")

    def plan(record):
        return ([finding(f"r{record.step % 2}", record.step)], []) if record.step in (8, 9) else ([], [])

    with caplog.at_level(logging.ERROR, logger="checkengine.capture"):
        served = Served(plan, write=write).run()
    assert served.captures.counts.outcomes()["failed"] == 1
    assert len(taken) == 2


@pytest.mark.parametrize("all_rows", [False, True])
def test_all_rows_are_cloned_where_the_budget_says_so_and_can_then_run_as_they_were(all_rows: bool) -> None:
    served = Served(planned(15, "r2"), window_steps=4, budget=Budget(all_rows=all_rows)).run()
    (capture,) = served.taken
    window = window_of_all_rows(capture, 12, 15)
    assert (window is not None) == all_rows
    if window is not None:
        assert all(step.involved.all() for step in window.steps)
        assert served.replayed().bit_exact


def test_a_step_that_was_not_recorded_is_counted_as_dropped() -> None:
    served = Served(nothing)
    record_of = served.shim.recorder.begin

    def forgetful(record) -> None:
        if record.step != 15:
            record_of(record)

    def plan(record):
        return ([finding("r2", 15)], []) if record.step == 15 else ([], [])

    served.shim.recorder.begin, served.shim.plan = forgetful, plan
    served.run()
    assert served.taken == []
    assert served.captures.counts.outcomes()["dropped"] == 1
