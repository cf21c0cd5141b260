"""The drift detector: quiet while nothing changes, quick when something does, the same however it is fed."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from checkengine.detectors.drift.bank import MOST_STRATA, CategoryBank, DriftAlarm, DriftBank
from checkengine.detectors.drift.bets import COARSE, FINE, Shape, design

Floats = NDArray[np.float64]


@pytest.mark.parametrize("shape", [FINE, COARSE])
def test_the_evidence_is_what_its_definition_says(shape: Shape) -> None:
    """A bank's Shiryaev-Roberts sum equals one computed from sorted lists of all earlier values."""
    values = np.random.default_rng(3).normal(size=1200).astype(np.float32).astype(np.float64)
    bank = DriftBank(1, strata=1 if shape is FINE else 2, baseline=shape.warm_up, arl=1e300)
    bank.update(0, values)
    table, weights = design(shape)["table"][0], design(shape)["weights"][0]
    shares = [abs(bet.size) for bet in shape.bets()[-2 * len(shape.tails) :]]
    sums = np.zeros(len(weights))
    gaps_of = _all_gaps(values, shape)
    for place, gaps in gaps_of:
        sums = (sums + 1.0) * _gains(place, gaps, table, shares)
    assert bank.log_evidence[0] == pytest.approx(math.log(float(weights @ sums)), abs=1e-6)


def _all_gaps(values: Floats, shape: Shape) -> list[tuple[int, Floats]]:
    """Bin of each value after the warm-up, and the share of every bin just before it."""
    found = []
    edges = [np.sort(values[: shape.warm_up])[rank - 1] for rank in shape.inner]
    cuts = np.empty(0)
    for index in range(shape.warm_up, len(values)):
        before = np.sort(values[:index])
        if index == shape.warm_up or index & (index - 1) == 0:
            low, high = int((before < edges[0]).sum()), int((before > edges[-1]).sum())
            lower = [before[max(min(rank, low), 1) - 1] for rank in shape.tails]
            upper = [before[-max(min(rank, high), 1)] for rank in reversed(shape.tails)]
            cuts = np.array([*lower, *edges, *upper])
        ranks = np.concatenate([[0], np.searchsorted(before, cuts) + 1, [index + 1]])
        found.append((int(np.searchsorted(cuts, values[index])), np.diff(ranks) / (index + 1)))
    return found


def _gains(place: int, chances: Floats, table: Floats, shares: list[float]) -> Floats:
    means = chances @ table
    tilts = len(means) - len(shares)
    gains = np.ones(len(means))
    gains[:tilts] = table[place, :tilts] / means[:tilts]
    for bet, share in enumerate(shares, start=tilts):
        if share > means[bet]:
            gains[bet] = share / means[bet] if table[place, bet] else (1 - share) / (1 - means[bet])
    return gains


@given(st.lists(st.integers(0, 700), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_values_one_by_one_or_in_batches_give_the_same_alarms(cuts: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.concatenate([random.normal(size=400), random.normal(3, 1, 300)])
    whole, pieces = (DriftBank(1, baseline=200, arl=1e4, seed=5) for _ in range(2))
    expected = [alarm.index for alarm in whole.update(0, values)]
    found, borders = [], sorted({0, 700, *cuts})
    for start, end in pairwise(borders):
        found += [start + alarm.index for alarm in pieces.update(0, values[start:end])]
    assert found == expected
    assert pieces.log_evidence.tolist() == whole.log_evidence.tolist()


def test_series_of_a_bank_do_not_touch_each_other() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(3000, 3))
    values[2000:, 1] += 2.0
    together, alone = DriftBank(3, arl=1e6), DriftBank(3, arl=1e6)
    alarms = together.update(np.tile(np.arange(3), 3000), values.ravel())
    assert {alarm.series for alarm in alarms} == {1}
    told = [alarm.log_evidence for number in range(3) for alarm in alone.update(number, values[:, number])]
    assert told == [alarm.log_evidence for alarm in alarms]


@pytest.mark.parametrize(
    "shape", ["normal", "cauchy", "lengths with ties", "almost constant", "constant", "two values"]
)
def test_series_that_do_not_change_alarm_no_more_often_than_the_bound(shape: str) -> None:
    """At a low threshold, where chance alarms can be counted: 400 series of 5,000 values, 200 expected at most."""
    random = np.random.default_rng(1)
    size = (5000, 400)
    values = {
        "normal": lambda: random.normal(size=size),
        "cauchy": lambda: random.standard_cauchy(size),
        "lengths with ties": lambda: np.minimum(random.geometric(1 / 50, size), 128),
        "almost constant": lambda: np.where(random.random(size) < 0.99, 0.0, random.normal(size=size)),
        "constant": lambda: np.zeros(size),
        "two values": lambda: random.integers(0, 2, size),
    }[shape]()
    bank = DriftBank(400, baseline=200, arl=1e4)
    alarms = bank.update(np.tile(np.arange(400), 5000), values.ravel())
    assert len(alarms) <= 200


def test_categories_that_do_not_change_alarm_no_more_often_than_the_bound() -> None:
    random = np.random.default_rng(1)
    for shares in ((0.98, 0.01, 0.01), (0.5, 0.3, 0.2)):
        bank = CategoryBank(400, 4, baseline=200, arl=1e4)
        drawn = random.choice(3, (5000, 400), p=shares)
        assert len(bank.update(np.tile(np.arange(400), 5000), drawn.ravel())) <= 200


@pytest.mark.parametrize(
    ("change", "before", "within", "kind"),
    [
        (lambda x, r: x + 0.5, 1000, 400, "level"),
        (lambda x, r: x - 1.0, 1000, 150, "level"),
        (lambda x, r: x * 1.6, 1000, 600, "spread"),
        (lambda x, r: x * 0.5, 1000, 600, "spread"),
        (lambda x, r: np.where(r.random(len(x)) < 0.01, x + 9.0, x), 5000, 3000, "tail"),
        (lambda x, r: np.where(r.random(len(x)) < 0.01, x - 9.0, x), 5000, 3000, "tail"),
    ],
)
def test_a_change_is_found_and_named(change, before: int, within: int, kind: str) -> None:  # type: ignore[no-untyped-def]
    random = np.random.default_rng(2)
    for _ in range(5):
        bank = DriftBank(1, arl=1e7)
        assert not bank.update(0, random.normal(size=before))
        alarms = bank.update(0, change(random.normal(size=within), random))
        assert alarms
        assert alarms[0].bet.change == kind
        assert abs(alarms[0].began - before) < max(100, within / 2)


def test_a_rare_finish_reason_that_becomes_common_is_found_by_its_number() -> None:
    random = np.random.default_rng(2)
    bank = CategoryBank(1, 4, arl=1e7)
    before, after = random.choice(3, 5000, p=(0.93, 0.05, 0.02)), random.choice(3, 3000, p=(0.83, 0.05, 0.12))
    assert not bank.update(0, before)
    alarms = bank.update(0, after)
    assert alarms[0].bet.category in (0, 2)
    assert alarms[0].index < 1500


def test_the_mix_of_strata_may_change_at_will() -> None:
    """Two classes of requests with different answers: from all short to all long is no drift, given which is which."""
    random = np.random.default_rng(4)
    strata = (random.random(6000) < np.linspace(0.05, 0.95, 6000)).astype(int)
    values = random.normal(size=6000) + 3.0 * strata
    given, blind = DriftBank(1, strata=2, arl=1e6), DriftBank(1, arl=1e6)
    assert given.update(0, values, strata) == []
    assert blind.update(0, values)


def test_a_change_within_strata_is_found() -> None:
    random = np.random.default_rng(4)
    strata = random.integers(0, 5, 4000)
    values = random.normal(size=4000) + 3.0 * strata
    values[2000:] += 0.8
    alarms = DriftBank(1, strata=5, arl=1e6).update(0, values, strata)
    assert 2000 <= alarms[0].index < 2300


def test_an_autoregressive_series_is_judged_by_its_residuals_and_says_so() -> None:
    random = np.random.default_rng(5)
    noise = random.normal(size=24_000)
    values = np.zeros(24_000)
    for index in range(1, 24_000):
        values[index] = 0.5 * values[index - 1] + noise[index]
    values[20_000:] += 2.0
    alarms = DriftBank(1, arl=1e7).update(0, values)
    assert alarms[0].index >= 20_000
    assert alarms[0].dependent


@pytest.mark.parametrize("shape", ["cauchy", "normal"])
def test_independent_series_are_not_taken_for_dependent_ones(shape: str) -> None:
    """Two outliers in a row outweigh all other values, and odd first values shift all later ranks: neither counts."""
    random = np.random.default_rng(5)
    size = 300 * 17_000
    bank = DriftBank(300, arl=1e3)
    values = random.standard_cauchy(size) if shape == "cauchy" else random.normal(size=size)
    alarms = bank.update(np.tile(np.arange(300), 17_000), values)
    assert len(alarms) > 100
    assert sum(alarm.dependent for alarm in alarms) <= 0.005 * len(alarms)


def test_a_tolerated_shift_is_no_drift_and_a_larger_one_is() -> None:
    random = np.random.default_rng(6)
    calm = random.normal(size=3000)
    for shift, found in ((0.1, False), (0.8, True)):
        alarms = DriftBank(1, arl=1e6, tolerance=0.15).update(0, np.concatenate([calm, random.normal(shift, 1, 3000)]))
        assert bool(alarms) == found


def test_after_an_alarm_the_new_level_becomes_the_baseline() -> None:
    random = np.random.default_rng(7)
    alarms = DriftBank(1, arl=1e6).update(0, np.concatenate([random.normal(size=2000), random.normal(3, 1, 8000)]))
    assert len(alarms) == 1


def test_values_that_are_no_numbers_are_counted_and_change_nothing() -> None:
    random = np.random.default_rng(8)
    values = random.normal(size=2000)
    clean, dirty = DriftBank(1), DriftBank(1)
    clean.update(0, values)
    dirty.update(0, np.insert(values, [10, 1500, 1999], [np.nan, np.inf, -np.inf]))
    assert dirty.skipped.tolist() == [3]
    assert dirty.log_evidence.tolist() == clean.log_evidence.tolist()
    categories = CategoryBank(1, 4)
    categories.update(0, [-1, 0, 3, 99])
    assert categories.skipped.tolist() == [1]
    assert categories.shares(0).tolist() == [1 / 3, 0, 0, 2 / 3]


@given(st.lists(st.floats(width=64), max_size=300))
@settings(max_examples=25, deadline=None)
def test_no_values_however_odd_raise(values: list[float]) -> None:
    bank = DriftBank(1, baseline=150, arl=10.0)
    bank.update(0, values + values)
    assert not np.isnan(bank.log_evidence[0])


def test_the_state_of_a_series_stays_within_4_kib() -> None:
    for bank in (DriftBank(3), DriftBank(3, strata=MOST_STRATA), CategoryBank(3)):
        assert bank.state_bytes <= 4096


@pytest.mark.parametrize(
    "make",
    [
        lambda: DriftBank(0),
        lambda: DriftBank(1, strata=MOST_STRATA + 1),
        lambda: DriftBank(1, arl=1.0),
        lambda: CategoryBank(1, 1),
        lambda: DriftBank(1).update(1, [0.0]),
        lambda: DriftBank(1).update(-1, [0.0]),
        lambda: DriftBank(1, strata=2).update(0, [0.0], 2),
    ],
)
def test_what_a_bank_cannot_take_is_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"series|strata|categories|arl"):
        make()


def test_a_bet_never_wins_on_average_while_nothing_changes() -> None:
    """Over all gaps that the next value may fall into, each with the same probability, every bet's mean gain is 1."""
    for shape in (FINE, COARSE):
        random = np.random.default_rng(9)
        table, shares = design(shape)["table"][0], [abs(bet.size) for bet in shape.bets()[-2 * len(shape.tails) :]]
        for _ in range(20):
            chances = random.dirichlet(np.full(shape.edges + 1, 0.5))
            mean = sum(chance * _gains(place, chances, table, shares) for place, chance in enumerate(chances))
            assert mean == pytest.approx(np.ones(len(table[0])))


def test_an_alarm_tells_its_evidence_in_nats_above_the_threshold() -> None:
    random = np.random.default_rng(10)
    bank = DriftBank(1, arl=1e5)
    alarm: DriftAlarm = bank.update(0, np.concatenate([random.normal(size=1500), random.normal(4, 1, 100)]))[0]
    assert math.log(1e5) <= alarm.log_evidence < math.log(1e5) + 6
    assert alarm.seen == alarm.index + 1
