"""Faults that look like others: each is called by its name, for the reason that proves it."""

from __future__ import annotations

import pytest
import torch

from checkengine.selftest_cases import case_of
from checkengine.selftest_faults import judged
from checkengine.selftest_judging import Outcome

PROVEN_BY = {
    "forked_prefix": "another sequence's page",
    "neighbour_page": "another sequence's page",
    "scale_twice": "scores times 0.288675",
    "padded_amax": "rounded to multiples of 0.0314961",
    "stale_page_scale": "values of page 3 times 1.06",
    "layer_below_value": "no factor explains it",
    "combine_stride": "should hold stands in head",
    "rolled_early": "reads 1 not at all",
    "sanitised_row": "one constant",
}
"""Words of the sentence; of the first two, the class."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", PROVEN_BY)
def test_a_fault_that_looks_like_another_is_called_by_its_name(name: str) -> None:
    found = judged(case_of(name))
    assert found.verdict is not None
    assert found.outcome is Outcome.NAMED, (found.called, found.verdict.sentence)
    assert PROVEN_BY[name] in f"{found.called} {found.verdict.sentence}"


def test_a_page_of_another_row_is_placed_in_that_rows_memory_and_not_in_a_stand_ins() -> None:
    found = judged(case_of("neighbour_page"))
    assert found.verdict is not None
    assert found.verdict.slots
    assert all("of sequence" in place.words for place in found.verdict.slots), found.verdict.slots[0].words
