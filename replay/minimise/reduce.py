"""Searches for the least that still shows something.

Counter-based delta debugging (arXiv 2408.04735: what ProbDD's probabilities amount to is a fixed series of part sizes),
with parts cut by weight (arXiv 2411.19410), and a final pass one by one, which makes the outcome 1-minimal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

SHRINK = 1 - 1 / math.e
"""From one round's part size to the next one's."""


def keep_least(items: Sequence[T], weights: Sequence[int], shows: Callable[[list[T]], bool]) -> list[T]:
    """Items, in their order, from which no single one can be dropped without `shows` becoming False.

    `shows` holds for all items; it is never asked about them. It may be asked about none.
    """
    search = _Search(list(items), list(weights), shows)
    if not items or search.drop(set(range(len(items)))):
        return []
    share = SHRINK
    while share * search.total > max(search.left(), default=0) and len(search.kept) > 2:
        search.round(share)
        share *= SHRINK
    while search.one_by_one():
        pass
    return [items[index] for index in search.kept]


class _Search:
    def __init__(self, items: list[T], weights: list[int], shows: Callable[[list[T]], bool]) -> None:
        self.items, self.weights, self.shows = items, weights, shows
        self.kept = list(range(len(items)))

    @property
    def total(self) -> int:
        return sum(self.weights)

    def left(self) -> list[int]:
        return [self.weights[index] for index in self.kept]

    def drop(self, part: set[int]) -> bool:
        rest = [index for index in self.kept if index not in part]
        if not self.shows([self.items[index] for index in rest]):
            return False
        self.kept = rest
        return True

    def round(self, share: float) -> None:
        """Try to drop each part of about this share of all weight."""
        for part in self.parts(share * self.total):
            if len(part) < len(self.kept):
                self.drop(part)

    def parts(self, weight: float) -> list[set[int]]:
        parts: list[set[int]] = [set()]
        filled = 0.0
        for index in self.kept:
            if parts[-1] and filled + self.weights[index] > weight:
                parts.append(set())
                filled = 0.0
            parts[-1].add(index)
            filled += self.weights[index]
        return parts

    def one_by_one(self) -> bool:
        """Heavy ones first. True where one went, so that the others must be asked again."""
        before = len(self.kept)
        for index in sorted(self.kept, key=lambda index: -self.weights[index]):
            if len(self.kept) > 1:
                self.drop({index})
        return len(self.kept) < before


def least_number(low: int, high: int, accept: Callable[[int], bool]) -> int:
    """The least accepted number in low … high by halving, where `high` is accepted and whatever is above an accepted
    number is."""
    while low < high:
        middle = (low + high) // 2
        if accept(middle):
            high = middle
        else:
            low = middle + 1
    return high
