"""Processes that are killed while they capture. The whole run of 1,000 is `checkengine bench bundles`."""

from __future__ import annotations

from checkengine.benchmarks.bundle_crashes import UNKILLED, crash_in_process

LIVES = 20


def test_killed_captures_leave_whole_bundles_and_swept_drafts_and_every_trigger_is_accounted_for() -> None:
    found = crash_in_process(LIVES)
    assert found.unsound == []
    assert found.killed == LIVES - LIVES // UNKILLED
    assert found.torn >= 3
    assert found.committed >= LIVES
    assert found.dropped >= 1
    assert found.triggers == found.dropped + found.committed + found.torn + found.lost_in_memory
