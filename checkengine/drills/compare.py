"""Two runs of the same requests, compared in the sense of design rule 10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkengine.drills.serving import Run


@dataclass(frozen=True, slots=True)
class Difference:
    name: str
    index: int
    """First output token that differs (or that only one of the runs has)."""


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs; None where they are equal."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def differences(clean: Run, other: Run, names: list[str]) -> list[Difference]:
    """Requests whose tokens differ between the runs."""
    found = []
    for name in names:
        index = first_difference(clean.served[name].tokens, other.served[name].tokens)
        if index is not None:
            found.append(Difference(name, index))
    return found
