"""How much of each stratum was audited, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.replay.audit.bound import rate_bound
from checkengine.replay.audit.strata import ALL_ROWS

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StratumCount:
    """Rows of steps: a sequence counts once a step."""

    name: str
    seen: int
    audited: int
    convicted: int

    @property
    def share(self) -> float:
        """Of the rows seen."""
        return self.audited / self.seen if self.seen else 0.0

    @property
    def bound(self) -> float:
        """On the rate of faults among the stratum's rows, 95 %, one-sided."""
        return rate_bound(self.audited, self.convicted)

    def to_dict(self) -> dict[str, Any]:
        return {
            "stratum": self.name,
            "seen": self.seen,
            "audited": self.audited,
            "share": self.share,
            "convicted": self.convicted,
            "rate_bound_95": self.bound,
        }


class Coverage:
    """Counters of one process, aligned with `names`. `seen` is written by the thread that steps, the others by the
    audit's thread: each counter has one writer, and a reader may be a step behind."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.seen: Counts = np.zeros(len(names), np.int64)
        self.audited: Counts = np.zeros(len(names), np.int64)
        self.convicted: Counts = np.zeros(len(names), np.int64)

    def judged(self, counts: Counts, convicted: Counts) -> None:
        """One audit: rows that were judged and rows that were convicted, by stratum."""
        self.audited += counts
        self.convicted += convicted

    def strata(self) -> list[StratumCount]:
        """Those that any row was in."""
        rows = zip(self.names, self.seen.tolist(), self.audited.tolist(), self.convicted.tolist(), strict=True)
        return [StratumCount(*row) for row in rows if row[1]]

    def counts(self) -> dict[str, list[int]]:
        """By stratum: seen, audited, convicted; plain JSON, what `summed` takes."""
        return {each.name: [each.seen, each.audited, each.convicted] for each in self.strata()}


def summed(several: Iterable[Mapping[str, Sequence[int]]]) -> list[StratumCount]:
    """Of several processes' `counts`; the rows of all together first."""
    totals: dict[str, list[int]] = {ALL_ROWS: [0, 0, 0]}
    for counts in several:
        for name, numbers in counts.items():
            seen, audited, convicted = (int(number) for number in numbers)
            total = totals.setdefault(str(name), [0, 0, 0])
            for index, number in enumerate((seen, audited, convicted)):
                total[index] += number
    return [StratumCount(name, *total) for name, total in totals.items() if total[0]]
