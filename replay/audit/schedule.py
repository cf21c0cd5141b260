"""Which rows of which steps are audited.

Every stratum gets an equal share of the audits, and what a rare stratum cannot use goes to the others: rows of stratum
s are drawn with probability min(1, t / n_s), where n_s is how many of them a step has on average and t is as large as
the pace allows (the sum of min(n_s, t) is the audits a step). Each row of a stratum is drawn by itself at random, so
no rhythm of the traffic hides from it, and nothing but strata and random numbers decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from checkengine.replay.audit.coverage import Counts, Coverage
from checkengine.replay.audit.strata import Bits, Strata
from checkengine.replay.record import StepRecord

PLAN_STEPS = 64
"""Steps between two plans; a stratum that no plan knows is planned for at once."""
FORGET = 0.98
"""Of the rows a step, at each plan: traffic changes within the hour."""
DEAR = 0.25
"""Share in which rows that do not sample (a chunk that is not the prompt's last) may be drawn: the record does not tell
their bits, so that a screen takes two runs, and the longest steps have them."""
NEVER = 1 << 62


class Pace(Protocol):
    @property
    def per_step(self) -> float:
        """Audits a step."""

    @property
    def may_spend(self) -> bool: ...

    def step(self) -> None: ...

    def charge(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows of one step to audit. Only a uniform draw counts as audited for the stratum of all rows."""

    handles: list[int]
    bits: Bits
    """Strata that each row counts for, aligned with `handles`."""

    def of(self, handles: list[int]) -> Selection:
        kept = [index for index, handle in enumerate(self.handles) if handle in handles]
        return Selection([self.handles[index] for index in kept], self.bits[kept])


class AuditSchedule:
    """`choose` once a step, in order, on the thread that steps; `judged` from the audit's thread."""

    def __init__(self, strata: Strata, pace: Pace, *, seed: int | None = None, rows_per_audit: int = 2) -> None:
        """`rows_per_audit`: rows judged together, of one step; they share its cost. Without a seed each process draws
        otherwise."""
        if rows_per_audit < 1:
            raise ValueError(f"rows_per_audit must be at least 1, got {rows_per_audit}")
        self.strata, self.pace, self.rows_per_audit = strata, pace, rows_per_audit
        self.coverage = Coverage(strata.names)
        self.skipped = 0
        """Steps that were drawn and not audited: the budget was spent."""
        self._random = np.random.default_rng(seed)
        self._until: NDArray[np.int64] = np.full(len(strata.names), NEVER, np.int64)
        """Rows of each stratum until the next one that is drawn."""
        self._window: Counts = np.zeros(len(strata.names), np.int64)
        self._mean = np.zeros(len(strata.names))
        self._probabilities = np.zeros(len(strata.names))
        self._weight = 0.0
        self._steps = 0

    def choose(self, record: StepRecord) -> Selection | None:
        """Mostly None."""
        self.pace.step()
        bits = self.strata.of(record)
        counts = self.strata.counts(bits)
        self.coverage.seen += counts
        if not record.samples.all() and self._random.random() >= DEAR:
            bits[~record.samples] = 0
            counts = self.strata.counts(bits)
        self._window += counts
        self._steps += 1
        if self._steps == PLAN_STEPS or bool(((counts > 0) & (self._mean == 0)).any()):
            self._plan()
        self._until -= counts
        if (self._until > 0).all():
            return None
        drawn = np.flatnonzero(self._until <= 0)
        self._until[drawn] = self._gaps(self._probabilities[drawn])
        if not self.pace.may_spend:
            self.skipped += 1
            return None
        return self._select(record, bits, drawn)

    def judged(self, selection: Selection, convicted: frozenset[int] = frozenset()) -> None:
        """`convicted`: handles."""
        guilty = np.isin(selection.handles, list(convicted))
        self.coverage.judged(self.strata.counts(selection.bits), self.strata.counts(selection.bits[guilty]))

    def _plan(self) -> None:
        """From the rows a step as they were lately. A geometric gap has no memory: it may be drawn anew."""
        self._mean = FORGET * self._mean + self._window
        self._weight = FORGET * self._weight + self._steps
        self._window[:], self._steps = 0, 0
        self._probabilities = shares(self._mean / self._weight, self.pace.per_step)
        self._until = self._gaps(self._probabilities)

    def _gaps(self, probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
        gaps = np.full(len(probabilities), NEVER, np.int64)
        some = probabilities > 0
        gaps[some] = self._random.geometric(probabilities[some])
        return gaps

    def _select(self, record: StepRecord, bits: Bits, drawn: NDArray[np.int64]) -> Selection:
        order = self._random.permutation(len(bits))
        chosen: list[int] = []
        uniform = -1
        for stratum in drawn.tolist():
            row = next(row for row in order.tolist() if bits[row] >> stratum & 1)
            uniform = row if stratum == 0 else uniform
            if row not in chosen and len(chosen) < self.rows_per_audit:
                chosen.append(row)
        chosen += self._riders(order, bits, drawn, chosen)
        counted = bits[chosen]
        counted[np.array(chosen) != uniform] &= ~np.uint32(1)
        return Selection(record.handles[chosen].tolist(), counted)

    def _riders(self, order: NDArray[np.int64], bits: Bits, drawn: NDArray[np.int64], chosen: list[int]) -> list[int]:
        """Rows that cost little more in a step that is judged anyway: first of the strata that were drawn, then of
        those that were audited least."""
        room = self.rows_per_audit - len(chosen)
        if room <= 0:
            return []
        mask = np.uint32(sum(1 << stratum for stratum in drawn.tolist() if stratum))
        audited = self.coverage.audited.tolist()

        def rank(row: int) -> tuple[bool, int]:
            own = int(bits[row])
            return not own & mask, min(count for index, count in enumerate(audited) if index and own >> index & 1)

        return sorted((row for row in order.tolist() if row not in chosen and bits[row]), key=rank)[:room]


def shares(rows: NDArray[np.float64], audits: float) -> NDArray[np.float64]:
    """Probability with which a row of each stratum is drawn; `rows`: rows a step of each, `audits`: a step in all."""
    present = np.sort(rows[rows > 0])
    left, level = audits, 0.0
    for index, count in enumerate(present):
        level = left / (len(present) - index)
        if count >= level:
            break
        left, level = left - count, float(count)
    probabilities = np.zeros(len(rows))
    np.divide(level, rows, out=probabilities, where=rows > 0)
    return np.minimum(probabilities, 1.0)
