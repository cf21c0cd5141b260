"""Halving over slots and layers by runs of the model, for executors that show no single call."""

from __future__ import annotations

import math

import numpy as np
import pytest
from small_engine import SmallEngine, SmallExecutor, SmallFault

from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.localise import find_all
from checkengine.replay.windows import build_window


class Counted:
    """Is the guilty one in a part? Counts how often that was asked."""

    def __init__(self, guilty: int) -> None:
        self.guilty, self.tests = guilty, 0

    def __call__(self, part: np.ndarray) -> bool:
        self.tests += 1
        return self.guilty in part


@pytest.mark.parametrize("count", [1, 2, 3, 17, 100, 1023, 1024, 5000])
def test_one_guilty_candidate_costs_no_more_than_its_logarithm_and_four(count: int) -> None:
    random = np.random.default_rng(count)
    candidates = np.sort(random.choice(10 * count, count, replace=False)).astype(np.int32)
    for guilty in {int(candidates[0]), int(candidates[-1]), int(random.choice(candidates))}:
        counted = Counted(guilty)
        found, complete = find_all(candidates, counted, 64)
        assert (found.tolist(), complete) == ([guilty], True)
        assert counted.tests <= math.ceil(math.log2(count)) + 4


def test_several_guilty_candidates_are_all_found() -> None:
    guilty = {3, 4, 5, 77, 190}
    found, complete = find_all(np.arange(200, dtype=np.int32), lambda part: bool(guilty & set(part.tolist())), 64)
    assert (set(found.tolist()), complete) == (guilty, True)


def test_candidates_that_matter_together_only_are_not_named_one_by_one() -> None:
    found, complete = find_all(np.arange(64, dtype=np.int32), lambda part: {5, 50} <= set(part.tolist()), 64)
    assert (len(found), complete) == (0, False)


def test_a_search_that_finds_too_many_says_that_it_is_not_complete() -> None:
    found, complete = find_all(np.arange(64, dtype=np.int32), lambda part: len(part) > 0, 8)
    assert (len(found), complete) == (8, False)


def verdict_on(fault: SmallFault, seed: int = 3):
    engine = SmallEngine(fault, seed=seed)
    engine.run(30)
    executor = SmallExecutor(engine.model, fault)
    return engine, Judge(executor).judge(build_window(engine.capture([1], first=5)))


def test_a_read_of_both_keys_and_values_names_both() -> None:
    _, verdict = verdict_on(SmallFault("over_read"))
    assert verdict.parts == ("key", "value")
    assert verdict.fault_class == "over-read"
    assert verdict.op == "attention"


def test_the_whole_search_stays_within_its_budget() -> None:
    _, verdict = verdict_on(SmallFault("over_read", layer=1))
    localised = next(test for test in verdict.tests if test.name == "localise")
    # Slots, layers, parts, and a look at the slots that the step writes itself.
    assert localised.numbers["replays"] <= (math.ceil(math.log2(200)) + 4) + (1 + 4) + 2 + 3
    assert verdict.layers == (1,)


def test_a_slot_of_another_sequence_is_told_by_its_owner() -> None:
    engine, verdict = verdict_on(SmallFault("over_read", remainder=0), seed=12)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    (place,) = verdict.slots
    tables = engine.tables[verdict.step]
    owners = [f"s{handle}" for handle, table in tables.items() if place.block in table]
    assert place.block not in tables[1]
    assert (f"of sequence {owners[0]}" in place.words) if owners else ("of sequence s1" in place.words)
