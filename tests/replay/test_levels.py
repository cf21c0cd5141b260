"""How much of the KV memory a capture clones, and how many captures one fault may have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_engine import SmallEngine, SmallExecutor, SmallFault

from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import BundleError, BundleReader, write_bundle
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.extent import extent_within
from checkengine.replay.fault_limit import MOST_FAULTS, FaultLimit
from checkengine.replay.replayer import Replayer


def window_and_handle():
    engine = SmallEngine(seed=3)
    engine.run(30)
    handle = int(engine.records[-1].handles[0])
    return engine, engine.capture([handle], first=10).window, handle


def test_a_capture_takes_the_most_that_its_budget_allows() -> None:
    _, window, handle = window_and_handle()
    sizes = {}
    for most in range(60):
        extent = extent_within(window, [handle], 4, most_blocks=most)
        assert len(extent.blocks) <= most
        sizes[extent.level] = len(extent.blocks)
    assert sizes["L0"] == 0 < sizes["L1"] <= 3 < sizes["L3"]


def test_the_level_asked_for_bounds_the_capture_whatever_the_budget() -> None:
    _, window, handle = window_and_handle()
    for level in ("L0", "L1", "L2", "L3"):
        assert extent_within(window, [handle], 4, most_blocks=10**9, level=level).level == level  # type: ignore[arg-type]


def test_the_tail_of_a_suspect_holds_its_last_page_and_the_pages_around_it() -> None:
    engine, window, handle = window_and_handle()
    extent = extent_within(window, [handle], 4, most_blocks=10**9, level="L1")
    last = int(engine.tables[-1][handle][-1])
    assert last in extent.blocks
    assert set(np.diff(extent.blocks)) == {1}


def test_a_mixture_of_experts_has_everybody_or_the_tail() -> None:
    _, window, handle = window_and_handle()
    everybody = extent_within(window, [handle], 4, most_blocks=10**9, all_rows=True)
    assert len(everybody.involved) > 1
    less = extent_within(window, [handle], 4, most_blocks=len(everybody.blocks) - 1, all_rows=True)
    assert less.level in ("L1", "L0")


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_what_was_captured_without_its_pages_says_so_instead_of_replaying(level: str, tmp_path: Path) -> None:
    engine, _, handle = window_and_handle()
    capture = replace(engine.capture([handle], first=10, undo_from=10), level=level)
    path = write_bundle(capture, tmp_path, content="full")
    again = BundleReader(path).capture()
    assert again.level == level
    with pytest.raises(CannotReplayError, match=rf"of level {level}.*kv_bytes"):
        Replayer(SmallExecutor(engine.model, SmallFault()), again).replay()


def test_a_level_that_does_not_exist_is_a_damaged_bundle(tmp_path: Path) -> None:
    engine, _, handle = window_and_handle()
    path = write_bundle(replace(engine.capture([handle]), level="L9"), tmp_path, content="full")
    with pytest.raises(BundleError, match="level 'L9'"):
        BundleReader(path).capture()


def finding(kind: str) -> Finding:
    return Finding(kind, "s", Severity.ERROR, 1, 1, "guard")


def test_a_fault_that_strikes_often_has_a_few_captures_and_again_some_later() -> None:
    limit = FaultLimit(2, 60.0)
    assert [limit.admit(finding("a"), "k", now) for now in (0, 1, 2, 59)] == [True, True, False, False]
    assert limit.admit(finding("b"), "k", 2)
    assert limit.admit(finding("a"), "other kernel", 2)
    assert [limit.admit(finding("a"), "k", now) for now in (60, 60.5, 61)] == [True, False, True]


def test_the_memory_of_faults_is_bounded() -> None:
    limit = FaultLimit(1, 1e9)
    for number in range(3 * MOST_FAULTS):
        limit.admit(finding(f"kind-{number}"), "k", 0.0)
    assert len(limit._times) == MOST_FAULTS
