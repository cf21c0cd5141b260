"""One update of a numeric series, compiled: the bin of its rank, the bets on it, the urn that it joins."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.drift.compiled import compiled, scrambled
from checkengine.detectors.drift.urn import bin_of, keep_extremes, key_of, ordered_bits, set_tails, sum_up, warm
from checkengine.detectors.drift.wagers import forget_bets, settle, tell

STANDARD_ERRORS = 5.0
"""Mean product of neighbours' scores at which a series counts as dependent: a check does so to 1 in 1.7 million
independent ones."""
CALM = 20.0
"""While a bet has won more than this, a check for dependence waits: the change itself looks like dependence."""


@compiled
def update_many(
    all_series: Any,
    all_urns: Any,
    numbers: Any,
    values: Any,
    strata: Any,
    designs: Any,
    baseline: Any,
    threshold: Any,
    alarms: Any,
) -> Any:
    """Updates in the order of the arrays; alarms go to rows of `alarms` (`wagers.tell`); returns how many."""
    found, design = 0, designs[0]
    for index in range(numbers.shape[0]):
        number = numbers[index]
        series, urns = all_series[number], all_urns[number]
        update(series, urns, values[index], strata[index], design, baseline)
        if series.total >= threshold:
            tell(series, index, design.weights, alarms[found])
            found += 1
            start_again(series, urns)
    return found


@compiled
def update(series: Any, urns: Any, value: Any, stratum: Any, design: Any, baseline: Any) -> None:
    """A value that is not finite is counted and skipped."""
    if not np.isfinite(value):
        series.skipped += 1
        return
    value = _whitened(series, value)
    series.seen += 1
    urn, seed, bits = urns[stratum], series.seed + np.uint64(stratum), ordered_bits(value)
    if urn.seen < design.warm_up:
        if warm(urn, bits, seed, design):
            _sum_up_kept(urn, design)
    else:
        key, edges = key_of(bits, seed, urn.seen), design.table.shape[0] - 1
        place = bin_of(urn.words, edges, key)
        _follow(series, design.scores[place] - _mean_score(urn, design))
        if series.seen > baseline:
            _gain(urn, place, design)
            series.total = settle(series, design.gains, design.weights)
        _draw(urn, key, place, design)
    _check_dependence(series, urns, baseline)


@compiled
def _sum_up_kept(urn: Any, design: Any) -> None:
    if urn.sums.shape[0] > 1:
        sum_up(urn.gaps, design.table, urn.sums)


@compiled
def _gain(urn: Any, place: Any, design: Any) -> None:
    """What each bet multiplies by; each has mean 1 under the null, or at most 1 within the tolerance."""
    if urn.sums.shape[0] > 1:
        _gain_from(urn.sums, np.float64(urn.seen + 1), place, design)
    else:
        sum_up(urn.gaps, design.table, design.sums)
        _gain_from(design.sums, np.float64(urn.seen + 1), place, design)


@compiled
def _gain_from(sums: Any, count: Any, place: Any, design: Any) -> None:
    tilts, gains = design.table[place], design.gains
    ways = tilts.shape[0] - design.shares.shape[0]
    for bet in range(ways):
        gains[bet] = tilts[bet] * count / (sums[bet] * design.allowance[bet])
    for bet in range(ways, tilts.shape[0]):
        gains[bet] = _tail_gain(tilts[bet], sums[bet], design.shares[bet - ways], count) / design.allowance[bet]


@compiled
def _tail_gain(tilt: Any, inside: Any, share: Any, count: Any) -> Any:
    """No bet where the tail already holds its share."""
    if share * count <= inside:
        return 1.0
    return share * count / inside if tilt > 0.0 else (1.0 - share) * count / (count - inside)


@compiled
def _draw(urn: Any, key: Any, place: Any, design: Any) -> None:
    """The value joins the baseline."""
    urn.gaps[place] += 1
    urn.seen += 1
    tilts, sums = design.table[place], urn.sums
    for bet in range(sums.shape[0]):
        sums[bet] += tilts[bet]
    keep_extremes(urn.words, key, design.table.shape[0] - 1, design.kept)
    if urn.seen & (urn.seen - 1) == 0:
        set_tails(urn, design)
        _sum_up_kept(urn, design)


@compiled
def _whitened(series: Any, value: Any) -> Any:
    """The residual of a first-order autoregression whose coefficient is estimated from everything before."""
    if series.seen == 0:
        series.centre = series.previous = value
    now, before = value - series.centre, series.previous - series.centre
    residual = value - series.phi * series.previous if series.whiten else value
    series.products += now * before
    series.squares += now * now
    series.centre += now / (series.seen + 1)
    series.previous = value
    if series.whiten and series.squares > 0.0:
        series.phi = max(-0.99, min(0.99, series.products / series.squares))
    return residual


@compiled
def _mean_score(urn: Any, design: Any) -> Any:
    """The first values set the bins, so their scores' mean over all gaps is off from 0, differently in each stratum."""
    total = 0.0
    for each in range(design.scores.shape[0]):
        total += np.float64(urn.gaps[each]) * design.scores[each]
    return total / np.float64(urn.seen + 1)


@compiled
def _follow(series: Any, score: Any) -> None:
    """Sums for the autocorrelation of scores: these are bounded, where a value may outweigh all others."""
    product = score * series.score
    series.score_products += product
    series.score_squares += product * product
    series.score = score


@compiled
def _check_dependence(series: Any, urns: Any, baseline: Any) -> None:
    """When the count reaches the baseline, and each time it has doubled since."""
    rounds = series.seen // baseline
    if rounds * baseline == series.seen and rounds & (rounds - 1) == 0:
        series.due = 1
    if not series.due or series.page.max() > CALM:
        return
    series.due = 0
    if series.squares <= 0.0 or series.whiten:
        return
    if abs(series.score_products) <= STANDARD_ERRORS * np.sqrt(series.score_squares):
        return
    series.dependent = 1
    if urns.shape[0] == 1:
        series.whiten, series.phi = 1, series.products / series.squares
        forget_urns(urns)
        forget_bets(series)


@compiled
def forget_urns(urns: Any) -> None:
    for stratum in range(urns.shape[0]):
        urns[stratum].seen = 0


@compiled
def start_again(series: Any, urns: Any) -> None:
    """After an alarm: a new baseline from what comes now."""
    forget_urns(urns)
    forget_bets(series)
    series.seed = scrambled(series.seed, series.seen)
    series.seen = series.whiten = series.dependent = series.due = 0
    series.centre = series.squares = series.products = series.phi = 0.0
    series.score = series.score_squares = series.score_products = 0.0
