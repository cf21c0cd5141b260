"""The number of threads is measured, not believed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from checkengine.engine_shim.engine import threads
from checkengine.engine_shim.engine.threads import fastest_threads, usable_cores


class Clock:
    """Time goes on by what a run costs at the present number of threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: dict[int, float]) -> None:
        self.now, self.cost, self.runs = 0.0, cost, dict.fromkeys(cost, 0)
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.now)

    def run(self) -> None:
        count = torch.get_num_threads()
        self.runs[count] += 1
        self.now += self.cost[count]


@pytest.fixture(autouse=True)
def settings_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_two_threads_are_taken_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, {1: 1.0, 2: 0.6})
    assert fastest_threads(clock.run, 2) == 2


def test_one_thread_is_taken_where_two_wait_for_each_other_and_they_are_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, {1: 1.0, 2: 10.0})
    assert fastest_threads(clock.run, 2) == 1
    assert clock.runs[2] == 1


def test_omp_num_threads_bounds_what_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    clock = Clock(monkeypatch, {1: 1.0})
    assert fastest_threads(clock.run, usable_cores()) == 1
