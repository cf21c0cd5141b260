"""What moved, and where: a classifier two-sample test (Lopez-Paz and Oquab 2017) between requests before and after.

A classifier is trained on one half to tell after from before, and judged on the other half; then the halves change
places. If nothing changed, its scores on the held-out half order the requests at random, so the rank test there is a
valid p-value whatever the classifier; the two are dependent and combine as twice their mean (Rueschendorf 1982).

The p-value is honest for requests that were not chosen by their values. A drift alarm chooses: give as `after` what
came since the alarm, not what set it off. Each slice is tested by a classifier of its own, and
corrected for how many were tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

Value = str | int | float | bool
Request = Mapping[str, Value]

FEWEST = 100
"""Requests on each side below which nothing is claimed."""
MOST = 4000
"""Requests of each side that are used; of more, a random sample."""
FEWEST_IN_SLICE = 50
"""On each side."""
LEAST_IMPORTANCE = 0.005
MOST_NAMES = 64
SIGNIFICANT = 0.01
APART = 0.08
"""Area under the curve by which a slice must exceed the rest to be named."""


@dataclass(frozen=True, slots=True)
class Moved:
    feature: str
    importance: float
    """Drop of the held-out area under the curve when the feature's values are shuffled."""


@dataclass(frozen=True, slots=True)
class Slice:
    attribute: str
    value: str
    area: float
    """Area under the curve within the slice; 0.5 where nothing changed…"""
    area_elsewhere: float
    """…and in all requests outside of it."""
    p_value: float
    """Corrected for the number of slices tried."""


@dataclass(frozen=True, slots=True)
class DriftExplanation:
    p_value: float
    area: float
    """Held-out area under the curve; 0.5 is guessing."""
    moved: tuple[Moved, ...]
    """The features without which the classifier does worse, most important first."""
    slices: tuple[Slice, ...]
    """Those that changed more than the rest, most first; empty where the change is everywhere."""


def explain_drift(
    before: Sequence[Request], after: Sequence[Request], slices: Sequence[str] = ()
) -> DriftExplanation | None:
    """`slices`: attributes that say where a request ran (model, replica, kernel, prefix_hit, prompt_band…); all others
    are features. None where there are too few requests, or where neither all requests nor any slice changed."""
    if min(len(before), len(after)) < FEWEST:
        return None
    random = np.random.default_rng(0)
    chosen = [_sample(before, random), _sample(after, random)]
    requests = [*chosen[0], *chosen[1]]
    labels = np.repeat([0, 1], [len(chosen[0]), len(chosen[1])])
    table = _Table(requests)
    everyone = np.ones(len(requests), bool)
    whole = _Test(table, labels, everyone)
    found = _slices(table, labels, _insides(requests, slices))
    p_value = min(1.0, 2.0 * min([whole.p_value, *(each.p_value for each, _ in found)]))
    if p_value > SIGNIFICANT:
        return None
    scope = whole if not found or whole.p_value <= found[0][0].p_value else found[0][1]
    features = [name for name in table.names if name not in slices]
    return DriftExplanation(p_value, whole.area, scope.moved(features), tuple(each for each, _ in found))


class _Table:
    """Requests as numbers, shape (requests, columns); `owners` names each column's feature. A number becomes its normal
    score, the score's square and whether it is there at all, so that shifts and spreads both show; a name becomes a
    column a value. Labels play no part in it."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.names = sorted({name for request in requests for name in request})
        self.owners: list[str] = []
        columns: list[NDArray[np.float64]] = []
        for name in self.names:
            values = [request.get(name) for request in requests]
            made = _names(values) if any(isinstance(value, str | bool) for value in values) else _numbers(values)
            columns += made
            self.owners += [name] * len(made)
        self.values = np.stack(columns, axis=1)


class _Test:
    """The two halves of some of the requests."""

    def __init__(self, table: _Table, labels: NDArray[np.int64], within: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(within)
        splits = StratifiedKFold(2, shuffle=True, random_state=0).split(rows, labels[rows])
        self._halves = [_Half(table, labels, rows[train], rows[held_out]) for train, held_out in splits]
        self.area = float(np.mean([half.area for half in self._halves]))
        self.p_value = min(1.0, 2.0 * float(np.mean([half.p_value() for half in self._halves])))

    def moved(self, features: Sequence[str]) -> tuple[Moved, ...]:
        """Features that help on both held-out halves by more than chance would."""
        found = []
        for feature in features:
            drops = [half.importance(feature) for half in self._halves]
            if min(drops) > LEAST_IMPORTANCE:
                found.append(Moved(feature, round(float(np.mean(drops)), 4)))
        return tuple(sorted(found, key=lambda each: -each.importance))


class _Half:
    """A classifier, and the requests that it has not seen."""

    def __init__(
        self, table: _Table, labels: NDArray[np.int64], train: NDArray[np.int64], held_out: NDArray[np.int64]
    ) -> None:
        self._owners, self._table, self._labels = table.owners, table.values[held_out], labels[held_out]
        self._classifier = LogisticRegression(C=0.1, max_iter=200).fit(table.values[train], labels[train])
        self.area = self._area(self._table)

    def p_value(self) -> float:
        """One-sided rank test; ties make it conservative."""
        after = int(self._labels.sum())
        before = len(self._labels) - after
        deviation = np.sqrt((before + after + 1) / (12 * before * after))
        return NormalDist().cdf((0.5 - self.area) / float(deviation))

    def importance(self, feature: str) -> float:
        columns = [index for index, owner in enumerate(self._owners) if owner == feature]
        order = np.random.default_rng(0).permutation(len(self._table))
        shuffled = self._table.copy()
        shuffled[:, columns] = shuffled[:, columns][order]
        return self.area - self._area(shuffled)

    def _area(self, table: NDArray[np.float64]) -> float:
        return float(roc_auc_score(self._labels, self._classifier.decision_function(table)))


def _insides(requests: Sequence[Request], attributes: Sequence[str]) -> list[tuple[str, str, NDArray[np.bool_]]]:
    """Attribute, value and which requests are in, of each slice; the most common values of an attribute only."""
    found = []
    for attribute in attributes:
        values = np.array([str(request.get(attribute)) for request in requests])
        known, counts = np.unique(values, return_counts=True)
        found += [(attribute, str(known[each]), values == known[each]) for each in np.argsort(-counts)[:MOST_NAMES]]
    return found


def _slices(
    table: _Table, labels: NDArray[np.int64], insides: Sequence[tuple[str, str, NDArray[np.bool_]]]
) -> list[tuple[Slice, _Test]]:
    """Slices that changed more than the rest, the clearest first."""
    tried = [each for each in insides if _enough(labels[each[2]])]
    found = []
    for attribute, value, inside in tried:
        test = _Test(table, labels, inside)
        p_value = min(1.0, len(tried) * test.p_value)
        if p_value > SIGNIFICANT / 2:
            continue
        elsewhere = _Test(table, labels, ~inside).area if _enough(labels[~inside]) else 0.5
        if test.area - elsewhere >= APART:
            found.append((Slice(attribute, value, round(test.area, 4), round(elsewhere, 4), p_value), test))
    return sorted(found, key=lambda each: each[0].area_elsewhere - each[0].area)


def _enough(labels: NDArray[np.int64]) -> bool:
    return min(int(labels.sum()), int((1 - labels).sum())) >= FEWEST_IN_SLICE


def _sample(requests: Sequence[Request], random: np.random.Generator) -> list[Request]:
    if len(requests) <= MOST:
        return list(requests)
    return [requests[index] for index in random.choice(len(requests), MOST, replace=False)]


def _names(values: Sequence[Value | None]) -> list[NDArray[np.float64]]:
    texts = np.array([str(value) for value in values])
    known, counts = np.unique(texts, return_counts=True)
    return [(texts == name).astype(np.float64) for name in known[np.argsort(-counts, kind="stable")][:MOST_NAMES]]


def _numbers(values: Sequence[Value | None]) -> list[NDArray[np.float64]]:
    numbers = np.array([np.nan if value is None else float(value) for value in values])
    there = np.isfinite(numbers)
    _, places, counts = np.unique(numbers[there], return_inverse=True, return_counts=True)
    middles = (np.cumsum(counts) - counts / 2) / max(1, len(places))
    scores = np.zeros(len(numbers))
    scores[there] = np.array([NormalDist().inv_cdf(middle) for middle in middles])[places] if len(places) else 0.0
    return [scores, scores**2, there.astype(np.float64)]
