"""The pipeline: all guards on one step, none of which may take serving down."""

from __future__ import annotations

import logging
import threading

import pytest

from checkengine.guards.events import GuardDisabled
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.step import SequenceStart

STEPS = 30
QUICK = GuardsSettings(warm_up_steps=5, overruns=3)


class CpuClock:
    """Nanoseconds of CPU that pass only when a guard spends them."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class StubGuard:
    """Finds a fault in each step; spends and raises what a test tells it to."""

    version = 1
    needs_stats = False

    def __init__(self, name: str, cpu: CpuClock | None = None) -> None:
        self.name = name
        self.cpu = cpu or CpuClock()
        self.spends = 0
        self.raises_in: set[str] = set()
        self.begun: list[str] = []
        self.forgotten: list[str] = []

    def begin(self, start: SequenceStart) -> None:
        self.begun.append(start.name)
        self._maybe_raise("begin")

    def observe(self, step):
        self.cpu.now += self.spends
        self._maybe_raise("observe")
        return [Finding("repetition.loop", name, Severity.ERROR, step.step, 0, self.name) for name in step.sequences]

    def forget(self, sequence: str) -> None:
        self.forgotten.append(sequence)
        self._maybe_raise("forget")

    def _maybe_raise(self, where: str) -> None:
        if where in self.raises_in:
            raise ValueError("user text: my secret")


@pytest.fixture
def step(step_of):
    return step_of({"a": [1]})


def pipeline(*guards: StubGuard, settings: GuardsSettings = QUICK, events: list | None = None) -> Pipeline:
    return Pipeline(
        guards,
        settings,
        lambda: 123.0,
        publish=(events if events is not None else []).append,
        cpu_clock=guards[0].cpu,
    )


def told_by(findings: list[Finding]) -> list[str]:
    return [finding.guard for finding in findings]


@pytest.mark.parametrize("where", ["begin", "observe", "forget"])
def test_a_guard_that_raises_is_switched_off_and_the_others_go_on(step, caplog, where):
    bad, good, events = StubGuard("bad"), StubGuard("good"), []
    line = pipeline(bad, good, events=events)
    bad.raises_in = {where}
    with caplog.at_level(logging.WARNING, "checkengine.guards"):
        for _ in range(3):
            line.begin(SequenceStart(1, "a"))
            assert "good" in told_by(line.observe(step))
            line.forget("a")
    assert told_by(line.observe(step)) == ["good"]
    assert [event.guard for event in events if isinstance(event, GuardDisabled)] == ["bad"]
    assert len(caplog.records) == 1
    assert not line.states()["bad"].active


def test_the_reason_of_a_failure_names_the_place_and_no_user_text(step):
    bad, events = StubGuard("bad"), []
    line = pipeline(bad, events=events)
    bad.raises_in = {"observe"}
    line.observe(step)
    (event,) = events
    assert "ValueError at test_pipeline.py:" in event.reason
    assert "secret" not in event.reason
    assert event.time == 123.0


def test_a_guard_over_its_budget_several_times_in_a_row_is_switched_off(step):
    cpu = CpuClock()
    slow, good, events = StubGuard("slow", cpu), StubGuard("good", cpu), []
    line = pipeline(slow, good, events=events)
    for _ in range(QUICK.warm_up_steps):
        line.observe(step)
    slow.spends = 10_000_000
    for _ in range(QUICK.overruns):
        assert told_by(line.observe(step)) == ["slow", "good"]
    assert told_by(line.observe(step)) == ["good"]
    (event,) = events
    assert "10000 µs" in event.reason
    assert "520 µs" in event.reason


def test_overruns_that_are_not_in_a_row_are_forgiven(step):
    cpu = CpuClock()
    slow = StubGuard("slow", cpu)
    line = pipeline(slow)
    for index in range(STEPS):
        slow.spends = 0 if index % 3 == 0 else 10_000_000
        assert told_by(line.observe(step)) == ["slow"]
    assert line.states()["slow"].overruns > QUICK.overruns


def test_warm_up_is_not_held_against_a_guard(step):
    slow = StubGuard("slow", CpuClock())
    line = pipeline(slow, settings=GuardsSettings(warm_up_steps=STEPS, overruns=1))
    slow.spends = 10_000_000
    for _ in range(STEPS):
        line.observe(step)
    assert line.states()["slow"].active
    line.observe(step)
    assert not line.states()["slow"].active


def test_a_budget_grows_with_the_rows_of_the_batch(step_of):
    cpu = CpuClock()
    guard = StubGuard("slow", cpu)
    line = pipeline(guard, settings=GuardsSettings(warm_up_steps=0, overruns=1))
    guard.spends = 600_000
    line.observe(step_of({str(row): [1] for row in range(10)}))
    assert line.states()["slow"].active
    line.observe(step_of({"a": [1]}))
    assert not line.states()["slow"].active


def test_a_guard_is_switched_off_and_on_while_it_runs(step):
    guard, other = StubGuard("one"), StubGuard("two")
    line = pipeline(guard, other)
    line.disable("one")
    assert told_by(line.observe(step)) == ["two"]
    line.enable("one")
    assert told_by(line.observe(step)) == ["one", "two"]


def test_a_guard_that_comes_back_begins_anew_with_the_sequences_that_still_run(step):
    guard = StubGuard("one")
    line = pipeline(guard)
    line.begin(SequenceStart(1, "over"))
    line.begin(SequenceStart(2, "running"))
    line.disable("one")
    line.forget("over")
    line.begin(SequenceStart(3, "new"))
    line.rearm("one")
    guard.begun.clear()
    line.observe(step)
    assert guard.begun == ["running", "new"]
    assert "over" in guard.forgotten


def test_a_guard_that_failed_is_armed_again_at_run_time(step):
    guard = StubGuard("one")
    line = pipeline(guard)
    guard.raises_in = {"observe"}
    assert line.observe(step) == []
    guard.raises_in = set()
    line.rearm("one")
    assert told_by(line.observe(step)) == ["one"]


def test_a_guard_that_is_off_in_the_configuration_stays_off_until_it_is_switched_on(step):
    guard = StubGuard("repetition")
    line = pipeline(guard, settings=GuardsSettings.model_validate({"repetition": {"action": "off"}}))
    assert line.observe(step) == []
    line.enable("repetition")
    assert told_by(line.observe(step)) == ["repetition"]


def test_switching_a_guard_that_does_not_exist_is_an_error():
    with pytest.raises(KeyError):
        pipeline(StubGuard("one")).disable("two")


def test_a_retried_sequence_begins_anew(step):
    guard = StubGuard("one")
    line = pipeline(guard)
    line.begin(SequenceStart(1, "a"))
    line.restart("a")
    assert (guard.begun, guard.forgotten) == (["a", "a"], ["a"])


def test_switches_from_another_thread_never_break_a_step(step):
    guard, done = StubGuard("one"), threading.Event()
    line = pipeline(guard, StubGuard("two"))

    def toggle() -> None:
        for _ in range(300):
            line.disable("one")
            line.enable("one")
        done.set()

    thread = threading.Thread(target=toggle)
    thread.start()
    while not done.is_set():
        assert told_by(line.observe(step))[-1] == "two"
    thread.join()
    assert told_by(line.observe(step)) == ["one", "two"]


def test_the_cpu_time_of_a_step_is_the_sum_of_its_guards(step):
    cpu = CpuClock()
    one, two = StubGuard("one", cpu), StubGuard("two", cpu)
    line = pipeline(one, two)
    one.spends, two.spends = 2_000, 3_000
    line.observe(step)
    assert line.step_cpu_seconds == pytest.approx(5e-6)
    assert line.states()["two"].cpu_seconds == pytest.approx(3e-6)
