"""What moved, and in which slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from checkengine.detectors.drift.explain import explain_drift

SLICES = ("replica", "kernel", "prefix_hit")


def requests(
    random: np.random.Generator, n: int, where: dict[str, Any] | None = None, **moves: float
) -> list[dict[str, Any]]:
    """Features that move by `moves` on the requests that match `where`; on all of them where it is empty."""
    made = []
    for _ in range(n):
        request: dict[str, Any] = {
            "replica": f"r{random.integers(4)}",
            "kernel": ("paged", "reference")[random.integers(2)],
            "prefix_hit": bool(random.random() < 0.6),
            "entropy": random.normal(),
            "length": random.lognormal(5, 1),
            "finish": "length" if random.random() < 0.1 else "stop",
        }
        if where is not None and all(request[name] == value for name, value in where.items()):
            for name, move in moves.items():
                request[name] = request[name] + move
        made.append(request)
    return made


@pytest.mark.parametrize("where", [{"replica": "r2"}, {"kernel": "paged"}, {"prefix_hit": False}])
def test_the_feature_and_the_slice_that_moved_are_named(where: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    found = explain_drift(requests(random, 1200), requests(random, 1200, where, entropy=1.2), SLICES)
    assert found is not None
    assert found.p_value < 0.01
    assert found.moved[0].feature == "entropy"
    ((attribute, value),) = where.items()
    assert (found.slices[0].attribute, found.slices[0].value) == (attribute, str(value))
    assert found.slices[0].area > found.slices[0].area_elsewhere


def test_a_change_everywhere_names_the_feature_and_no_slice() -> None:
    random = np.random.default_rng(1)
    found = explain_drift(requests(random, 800), requests(random, 800, {}, entropy=1.0), SLICES)
    assert found is not None
    assert [each.feature for each in found.moved] == ["entropy"]
    assert found.slices == ()


def test_a_spread_that_grew_is_seen_as_well_as_a_level() -> None:
    random = np.random.default_rng(2)
    after = [{**each, "entropy": 2.0 * each["entropy"]} for each in requests(random, 600)]
    found = explain_drift(requests(random, 600), after, SLICES)
    assert found is not None
    assert found.moved[0].feature == "entropy"


def test_requests_that_did_not_change_are_explained_by_nothing() -> None:
    """At the 1 % level: none of 25 is expected, three would be a wrong p-value."""
    random = np.random.default_rng(3)
    claims = [explain_drift(requests(random, 300), requests(random, 300), SLICES) for _ in range(25)]
    assert sum(claim is not None for claim in claims) <= 2


def test_too_few_requests_are_not_explained() -> None:
    random = np.random.default_rng(4)
    assert explain_drift(requests(random, 99), requests(random, 500, {}, entropy=9.0)) is None


def test_missing_and_odd_values_are_taken_as_they_are() -> None:
    random = np.random.default_rng(5)
    before, after = requests(random, 200), requests(random, 200, {}, entropy=2.0)
    for index, request in enumerate([*before, *after]):
        if index % 3 == 0:
            del request["length"]
        if index % 5 == 0:
            request["entropy"] = float("nan")
        request["constant"] = 1
    found = explain_drift(before, after, (*SLICES, "nowhere"))
    assert found is not None
    assert found.moved[0].feature == "entropy"
