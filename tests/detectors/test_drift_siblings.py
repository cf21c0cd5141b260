"""One member of a fleet against its siblings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors.drift.siblings import START_SECONDS, Counts, SiblingTest

NAMES = tuple(f"r{number}" for number in range(10))
EQUAL = dict.fromkeys(NAMES, 1000)

names = st.sampled_from(NAMES)
counts = st.builds(
    Counts,
    st.dictionaries(names, st.integers(0, 10_000), max_size=10),
    st.dictionaries(names, st.integers(0, 50), max_size=10),
)


def plain(each: Counts) -> tuple[dict[str, int], dict[str, int]]:
    return dict(each.requests), dict(each.findings)


@given(counts, counts, counts)
def test_the_sum_of_counts_is_the_same_in_any_order_and_grouping(a: Counts, b: Counts, c: Counts) -> None:
    assert plain((a + b) + c) == plain(a + (b + c))
    assert plain(a + b) == plain(b + a)


@given(st.permutations(NAMES), st.lists(st.integers(0, 9), max_size=60))
@settings(max_examples=30)
def test_the_order_of_replicas_changes_nothing(order: list[str], hits: list[int]) -> None:
    told = []
    for listed in (NAMES, order):
        test = SiblingTest(10)
        for step, hit in enumerate(hits):
            found = test.observe(60.0 * step, Counts(dict.fromkeys(listed, 100), {NAMES[hit]: 1}))
            told.append([(each.member, each.findings) for each in found])
    assert told[: len(hits)] == told[len(hits) :]


def test_the_bad_replica_is_named_with_its_counts() -> None:
    test = SiblingTest(10)
    accused = []
    for step in range(40):
        accused += test.observe(600.0 * step, Counts(EQUAL, {"r3": 1} if step % 2 else {}))
    (accusation,) = accused
    assert accusation.member == "r3"
    assert accusation.log_evidence >= np.log(test.threshold)
    assert accusation.findings <= 20
    assert accusation.rate_of_siblings == 0.0
    assert accusation.ratio == float("inf")
    assert test.accused == {"r3"}


def test_findings_in_proportion_to_requests_accuse_nobody() -> None:
    """A replica with half of the traffic may have half of the findings; and a rise of all is nobody's fault."""
    random = np.random.default_rng(0)
    test = SiblingTest(10)
    requests = {**EQUAL, "r0": 9000}
    shares = np.array([requests[name] for name in NAMES]) / sum(requests.values())
    for step in range(3000):
        findings = random.multinomial(random.poisson(0.5 if step < 1000 else 20.0), shares)
        told = test.observe(600.0 * step, Counts(requests, dict(zip(NAMES, findings.tolist(), strict=True))))
        assert told == []


def test_false_accusations_stay_within_the_bound() -> None:
    """At a generous bound, where they can be counted: 200 a year expected at most, over 3 years."""
    random = np.random.default_rng(1)
    test, accused = SiblingTest(10, accusations_a_year=200.0), 0
    for step in range(3 * 1461):
        findings = dict(zip(NAMES, random.poisson(0.5, 10).tolist(), strict=True))
        for accusation in test.observe(step * START_SECONDS, Counts(EQUAL, findings)):
            accused += 1
            test.readmit(accusation.member)
    assert 0 < accused <= 600


def test_an_accused_replica_is_out_of_the_comparison_until_it_is_readmitted() -> None:
    test = SiblingTest(10)
    bad = Counts(EQUAL, {"r3": 5})
    told = [each for step in range(30) for each in test.observe(600.0 * step, bad)]
    assert len(told) == 1
    test.readmit("r3")
    assert [each for step in range(30, 60) for each in test.observe(600.0 * step, bad)]


def test_a_second_bad_replica_is_named_too() -> None:
    test = SiblingTest(10)
    both = Counts(EQUAL, {"r3": 2, "r5": 2})
    told = [each.member for step in range(60) for each in test.observe(600.0 * step, both)]
    assert sorted(told) == ["r3", "r5"]


def test_replicas_that_come_and_go_and_idle_ones_are_taken_as_they_are() -> None:
    test = SiblingTest(4)
    assert test.observe(0.0, Counts()) == []
    assert test.observe(1.0, Counts({"a": 0}, {"a": 3})) == []
    assert test.observe(2.0, Counts({"a": 5}, {"a": 5})) == []
    assert test.observe(3.0, Counts({"a": 5, "b": 5}, {"unknown": 5})) == []


@pytest.mark.parametrize(("members", "accusations"), [(1, 1.0), (4, 0.0)])
def test_impossible_bounds_are_refused(members: int, accusations: float) -> None:
    with pytest.raises(ValueError, match="at least two members"):
        SiblingTest(members, accusations)
