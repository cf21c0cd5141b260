"""Which attribute of a request separates the faulty ones from the healthy: "length_mod_block = 1: 98 % of the faults".

A shallow decision tree over what was recorded of each request (device, kernel, length modulo the block size, prefix
hit…). It names associations and no causes; the replay decides about those. It says nothing where the faults are few
or the tree does no better than chance; tried on attributes that explain nothing, it still named one in 2 of 240 sets
with 6 to 8 faults and in none of 240 with 12 or 30.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

Value = str | int | float | bool
Attributes = Mapping[str, Value]

MAX_DEPTH = 2
"""Two conditions are what a person can act on at night."""
MAX_CATEGORIES = 32
FEWEST_FAULTS = 6
"""Fewer faulty requests agree on something by chance too easily."""
LEAST_SKILL = 0.75
"""Balanced accuracy on held-out requests below which nothing is claimed; 0.5 is guessing."""
FOLDS = 3
WAYS = 3


@dataclass(frozen=True, slots=True)
class Condition:
    """One attribute and what it must be: `is` and `is not` for names, `<=` and `>` for numbers."""

    attribute: str
    relation: str
    value: Value

    def __str__(self) -> str:
        return f"{self.attribute} {self.relation} {self.value}"

    def holds(self, attributes: Attributes) -> bool:
        actual = attributes.get(self.attribute)
        if self.relation == "is":
            return actual == self.value
        if self.relation == "is not":
            return actual != self.value
        if not isinstance(actual, int | float) or not isinstance(self.value, int | float):
            return False
        return actual <= self.value if self.relation == "<=" else actual > self.value


@dataclass(frozen=True, slots=True)
class Explanation:
    """Shares are of all the requests that were given, not of held-out ones."""

    conditions: tuple[Condition, ...]
    faults_explained: float
    """Share of faulty requests that meet the conditions."""
    healthy_that_match: float
    """Share of healthy requests that meet them as well; 0 separates perfectly."""
    skill: float
    """Balanced accuracy on held-out requests."""

    def __str__(self) -> str:
        rule = " and ".join(str(condition) for condition in self.conditions)
        return f"{rule}: {self.faults_explained:.0%} of faulty, {self.healthy_that_match:.0%} of healthy requests"


@dataclass(frozen=True, slots=True)
class _Feature:
    attribute: str
    category: Value | None
    """One column a category; None where the attribute is a number."""


def explain(faulty: Sequence[Attributes], healthy: Sequence[Attributes]) -> Explanation | None:
    """The shortest rule of at most two conditions that finds the faulty requests; None where none can be claimed.

    Numbers with few different values (a length modulo 32) are tried as names as well. Takes a few tenths of a second
    for 1,500 requests; give it a sample of healthy ones rather than all.
    """
    if len(faulty) < FEWEST_FAULTS or len(healthy) < FEWEST_FAULTS:
        return None
    features = _features([*faulty, *healthy])
    if not features:
        return None
    table = _table(features, [*faulty, *healthy])
    labels = np.repeat([1, 0], [len(faulty), len(healthy)])
    for depth in range(1, MAX_DEPTH + 1):
        tree = DecisionTreeClassifier(
            max_depth=depth, class_weight="balanced", min_samples_leaf=FEWEST_FAULTS // 2, random_state=0
        )
        skill = _held_out_skill(tree, table, labels)
        if skill >= LEAST_SKILL and (depth == MAX_DEPTH or skill > _enough(tree, table, labels)):
            return _describe(tree.fit(table, labels), features, faulty, healthy, skill)
    return None


def _enough(tree: DecisionTreeClassifier, table: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """A second condition must buy at least five points; else the shorter rule is the better one to read."""
    deeper = DecisionTreeClassifier(**{**tree.get_params(), "max_depth": MAX_DEPTH})
    return _held_out_skill(deeper, table, labels) - 0.05


def _held_out_skill(tree: DecisionTreeClassifier, table: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The worst of a few ways to hold out: what holds by chance in one of them seldom does in all."""
    ways = [StratifiedKFold(FOLDS, shuffle=True, random_state=way) for way in range(WAYS)]
    return min(float(balanced_accuracy_score(labels, cross_val_predict(tree, table, labels, cv=way))) for way in ways)


def _features(requests: Sequence[Attributes]) -> list[_Feature]:
    features = []
    for attribute in sorted({name for request in requests for name in request}):
        values = [request[attribute] for request in requests if attribute in request]
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        different = sorted(set(values), key=str)
        if len(different) <= MAX_CATEGORIES:
            features += [_Feature(attribute, value) for value in different]
        if numeric and len(different) > 1:
            features.append(_Feature(attribute, None))
    return features


def _table(features: Sequence[_Feature], requests: Sequence[Attributes]) -> NDArray[np.float32]:
    """Shape (requests, features); a number that is missing is NaN, which the tree sends to either side."""
    return np.array([[_cell(feature, request) for feature in features] for request in requests], np.float32)


def _cell(feature: _Feature, request: Attributes) -> float:
    value = request.get(feature.attribute)
    if feature.category is not None:
        return float(value == feature.category)
    return float(value) if isinstance(value, int | float) else float("nan")


def _describe(
    fitted: DecisionTreeClassifier,
    features: Sequence[_Feature],
    faulty: Sequence[Attributes],
    healthy: Sequence[Attributes],
    skill: float,
) -> Explanation | None:
    rules = [_explanation(path, faulty, healthy, skill) for path in _fault_paths(fitted, features)]
    return max(rules, key=lambda rule: rule.faults_explained - rule.healthy_that_match, default=None)


def _explanation(
    conditions: tuple[Condition, ...], faulty: Sequence[Attributes], healthy: Sequence[Attributes], skill: float
) -> Explanation:
    def share(requests: Sequence[Attributes]) -> float:
        return sum(all(each.holds(request) for each in conditions) for request in requests) / len(requests)

    return Explanation(conditions, share(faulty), share(healthy), skill)


def _fault_paths(fitted: DecisionTreeClassifier, features: Sequence[_Feature]) -> list[tuple[Condition, ...]]:
    """Conditions from the root to each leaf that says faulty."""
    tree, paths = fitted.tree_, []
    waiting: list[tuple[int, tuple[Condition, ...]]] = [(0, ())]
    while waiting:
        node, conditions = waiting.pop()
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        if left < 0:
            if conditions and tree.value[node][0][1] > tree.value[node][0][0]:
                paths.append(conditions)
            continue
        feature, threshold = features[tree.feature[node]], float(tree.threshold[node])
        waiting.append((left, (*conditions, _condition(feature, threshold, above=False))))
        waiting.append((right, (*conditions, _condition(feature, threshold, above=True))))
    return paths


def _condition(feature: _Feature, threshold: float, *, above: bool) -> Condition:
    if feature.category is not None:
        return Condition(feature.attribute, "is" if above else "is not", feature.category)
    return Condition(feature.attribute, ">" if above else "<=", threshold)
