"""Evidence summed over replicas, quantiles merged over replicas, bands of an input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkengine.detectors.drift.bands import Bands
from checkengine.detectors.drift.bank import CategoryBank, DriftBank
from checkengine.detectors.drift.bets import FINE, design
from checkengine.detectors.drift.evidence import Evidence, FleetDetector
from checkengine.detectors.drift.summary import Summary

evidences = st.lists(st.integers(-(2**60), 2**60), min_size=3, max_size=3).map(lambda each: Evidence(tuple(each)))
WEIGHTS = tuple(design(FINE)["weights"][0])


@given(evidences, evidences, evidences)
def test_evidence_is_the_same_in_any_order_and_grouping(a: Evidence, b: Evidence, c: Evidence) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a


def test_evidence_collected_in_pieces_is_the_evidence_collected_at_once() -> None:
    """But for the rounding of each piece, a few 2^-32 of a nat."""
    values = np.random.default_rng(0).normal(size=3000)
    once, pieces = DriftBank(1, arl=1e300), DriftBank(1, arl=1e300)
    once.update(0, values)
    total = Evidence((0,) * len(WEIGHTS))
    for part in np.array_split(values, 7):
        pieces.update(0, part)
        total = total + pieces.collect(0)
    assert np.allclose(total.growth, once.collect(0).growth, rtol=0, atol=1000)
    assert once.collect(0).growth == (0,) * len(WEIGHTS)


def _fleet(random: np.random.Generator, shift: float, rounds: int) -> list[int]:
    """Rounds of 100 requests on each of 20 replicas; the rounds at which the fleet's detector told."""
    banks, detector, told = (
        [DriftBank(1, arl=1e300, seed=number) for number in range(20)],
        FleetDetector(WEIGHTS, 1e6),
        [],
    )
    for each in range(rounds):
        moved = shift if each >= 20 else 0.0
        parts = []
        for bank in banks:
            bank.update(0, random.normal(moved, 1, 100))
            parts.append(bank.collect(0))
        if detector.take(sum(parts[1:], parts[0])) is not None:
            told.append(each)
    return told


def test_a_fleet_sees_what_no_replica_could_see_so_soon() -> None:
    """A shift of 0.2 standard deviations everywhere: after 5 rounds each replica has seen 500 values of it."""
    told = _fleet(np.random.default_rng(1), 0.2, 26)
    assert told
    assert 20 <= told[0] <= 24


def test_a_fleet_that_does_not_change_is_quiet() -> None:
    assert _fleet(np.random.default_rng(2), 0.0, 60) == []


def test_evidence_of_categories_carries_its_price() -> None:
    bank = CategoryBank(1, 4, baseline=10)
    bank.update(0, [0, 1] * 200)
    assert bank.collect(0).price == pytest.approx(np.log(2 * np.sqrt(400)))


def test_evidence_of_other_bets_is_refused() -> None:
    with pytest.raises(ValueError, match="bets"):
        Evidence((1, 2)) + Evidence((1,))
    with pytest.raises(ValueError, match="bets"):
        FleetDetector(WEIGHTS, 1e6).take(Evidence((1,)))


def test_merged_quantiles_are_those_of_all_values_whichever_replica_comes_first() -> None:
    random = np.random.default_rng(3)
    parts = [random.lognormal(size=4000) for _ in range(5)]
    everything = np.concatenate(parts)
    for order in (range(5), reversed(range(5))):
        merged = Summary()
        for number in order:
            part = Summary()
            part.add(parts[number])
            merged.merge(part)
        assert len(merged) == 20_000
        for probability, value in zip((0.1, 0.5, 0.9), merged.quantiles((0.1, 0.5, 0.9)), strict=True):
            assert abs(float((everything <= value).mean()) - probability) < 0.06
        assert merged.state_bytes < 2048


def test_the_same_values_give_the_same_quantiles_each_time() -> None:
    values, told = np.random.default_rng(5).lognormal(size=20_000), set()
    for _ in range(4):
        summary = Summary()
        summary.add(values)
        told.add(tuple(summary.quantiles((0.1, 0.5, 0.9))))
    ((low, middle, high),) = told
    for value, probability in ((low, 0.1), (middle, 0.5), (high, 0.9)):
        assert abs(float((values <= value).mean()) - probability) < 0.04


def test_quantiles_of_the_largest_numbers_are_numbers() -> None:
    summary = Summary()
    summary.add(np.array([1e308, -1e308, 1e39, 1.0] * 2000))
    assert np.isfinite(summary.quantiles((0.01, 0.5, 0.9, 0.99))).all()


def test_a_summary_knows_its_recent_values_and_leaves_out_what_is_no_number() -> None:
    summary = Summary()
    assert np.isnan(summary.quantiles((0.5,))[0])
    assert np.isnan(summary.recent_quantiles((0.5,))[0])
    summary.add(np.array([np.nan, np.inf, *([1.0] * 500), *([9.0] * 64)]))
    assert len(summary) == 564
    assert summary.quantiles((0.5,)) == [1.0]
    assert summary.recent_quantiles((0.5,)) == [9.0]


def test_bands_hold_about_equal_shares_of_the_inputs_they_learnt_from() -> None:
    bands, inputs = Bands(4, 400), np.random.default_rng(4).lognormal(6, 1, 400)
    for value in inputs:
        assert not bands.ready
        bands.learn(float(value))
    assert bands.ready
    shares = np.bincount(bands.of(inputs), minlength=4) / 400
    assert np.all(np.abs(shares - 0.25) < 0.03)
    assert bands.of(np.array([np.nan, -1e30, 1e30])).tolist() == [0, 0, 3]


def test_bands_of_a_constant_input_are_two_at_most() -> None:
    bands = Bands(8, 50)
    for _ in range(50):
        bands.learn(512.0)
    assert set(bands.of(np.array([1.0, 512.0, 9999.0])).tolist()) <= {0, 1}
