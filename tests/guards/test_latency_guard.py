"""Late tokens are told in bursts, and never where no limit is set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkengine.detectors.latency import BurstLimits, LateBursts
from checkengine.guards.finding import Finding
from checkengine.guards.latency import LatencyGuard
from checkengine.guards.settings import LatencySettings
from checkengine.guards.step import SequenceStart, StepView

StepOf = Callable[..., StepView]


@pytest.fixture
def stream(step_of: StepOf) -> Callable[..., list[Finding]]:
    """One sequence whose steps begin so many seconds after each other."""

    def run(guard: LatencyGuard, waits: list[float], tokens: int = 1, name: str = "a") -> list[Finding]:
        guard.begin(SequenceStart(0, name, arrived=0.0))
        now, found = 0.1, []
        for index, wait in enumerate([0.0, *waits]):
            now += wait
            view = step_of({name: [1] * tokens}, before=index * tokens, step=index)
            found += list(guard.observe(replace(view, time=now)))
        return found

    return run


def test_one_slow_token_is_a_hiccup_and_a_run_of_them_is_told_once(stream: Any) -> None:
    guard = LatencyGuard(LatencySettings(tbt_seconds=0.03))
    assert stream(guard, [0.02] * 50 + [5.0] + [0.02] * 50) == []
    (finding,) = stream(guard, [0.02] * 50 + [0.1] * 30)
    assert (finding.kind, finding.token) == ("latency.slo", 58)
    assert finding.evidence == {"tbt_seconds": 0.1, "limit_seconds": 0.03}


def test_several_tokens_a_step_share_the_wait(stream: Any) -> None:
    guard = LatencyGuard(LatencySettings(tbt_seconds=0.03))
    assert stream(guard, [0.1] * 30, tokens=4) == []
    assert len(stream(guard, [0.1] * 30, tokens=3)) == 1


def test_first_tokens_are_counted_over_sequences(step_of: StepOf) -> None:
    guard = LatencyGuard(LatencySettings(ttft_seconds=0.5, burst=3))
    found: list[Finding] = []
    for number, wait in enumerate([0.9, 0.1, 0.1, 0.9, 0.9, 0.9]):
        name = f"s{number}"
        guard.begin(SequenceStart(number, name, arrived=10.0 * number))
        found += list(guard.observe(replace(step_of({name: [1]}, step=number), time=10.0 * number + wait)))
        guard.forget(name)
    assert [finding.sequence for finding in found] == ["s5"]
    assert found[0].evidence["ttft_seconds"] == 0.9


def test_a_sequence_that_was_under_way_or_whose_arrival_is_unknown_has_no_first_token(step_of: StepOf) -> None:
    guard = LatencyGuard(LatencySettings(ttft_seconds=0.001, burst=1))
    guard.begin(SequenceStart(0, "late", arrived=0.0))
    guard.begin(SequenceStart(1, "unknown"))
    assert list(guard.observe(replace(step_of({"late": [1]}, before=9), time=50.0))) == []
    assert list(guard.observe(replace(step_of({"unknown": [1]}), time=50.0))) == []


def test_without_limits_nothing_is_late(stream: Any) -> None:
    assert stream(LatencyGuard(LatencySettings()), [100.0] * 50) == []


def test_slots_are_freed(stream: Any) -> None:
    guard = LatencyGuard(LatencySettings(tbt_seconds=1.0))
    for number in range(300):
        stream(guard, [0.1], name=f"s{number}")
        guard.forget(f"s{number}")
    assert len(guard._slots) == 0
    assert len(guard._free) == 1


@given(st.lists(st.floats(0, 2), max_size=200), st.floats(1, 10), st.floats(0.05, 1))
def test_every_telling_takes_a_burst_of_late_ones_of_its_own(waits: list[float], burst: float, forgiven: float) -> None:
    bursts, told = LateBursts(BurstLimits(1.0, burst, forgiven)), 0
    for wait in waits:
        told += len(bursts.add(np.zeros(1, np.int64), np.array([wait])))
    late = sum(wait > 1.0 for wait in waits)
    assert told <= late / burst
