"""Who of the ranks answers wrongly: the same inputs on another rank, and on a third where two disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Compute = Callable[[int, list[dict[str, Any]]], list[str] | None]
"""Outputs that a rank computes for witnesses; None where it could not."""


def odd_ones(told: Mapping[int, list[dict[str, Any]]], ranks: Sequence[int], compute: Compute) -> list[int]:
    """`told` is what each rank says its experts were given and gave. With two ranks a disagreement accuses nobody:
    both could be wrong."""
    accused: list[int] = []
    for place, rank in enumerate(ranks):
        others = [ranks[(place + step) % len(ranks)] for step in range(1, len(ranks))]
        witnesses = told.get(rank) or []
        if not witnesses or not others:
            continue
        own = [each["outputs"] for each in witnesses]
        second = compute(others[0], witnesses)
        if second is None or second == own or len(others) < 2:
            continue
        third = compute(others[1], witnesses)
        if third == second:
            accused.append(rank)
        elif third == own:
            accused.append(others[0])
    return list(dict.fromkeys(accused))
