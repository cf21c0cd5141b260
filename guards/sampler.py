"""A sampler that does not draw as it was asked to: exactly where one token shows it, by evidence where only many do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.sampling import (
    Breach,
    Draws,
    Precision,
    Rules,
    Tolerance,
    breaches,
    chosen_logits,
    read_draws,
    rule_of,
)
from checkengine.detectors.sampling_evidence import ReplicaEvidence, SequenceEvidence, best_factors, factors
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.flat import flat_tokens
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.settings import SamplerSettings
from checkengine.guards.step import SequenceStart, StepView

KIND = "sampler.inconsistent"


@dataclass(frozen=True, slots=True)
class _Batch:
    """What holds as long as the rows stay the same."""

    sequences: tuple[str, ...]
    final: bool
    rules: Rules
    slots: NDArray[np.int64]
    """-1 where a sequence was never begun."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Of one step, arrays of shape (rows,)."""

    tokens: NDArray[np.int64]
    """0 where a row is not judged."""
    judged: NDArray[np.bool_]
    maximum: NDArray[np.float32]
    chosen: NDArray[np.float32]
    ties: NDArray[np.float32]
    tolerance: Tolerance


class SamplerGuard(ReportsOnce):
    """Needs `StepView.scores`; where an engine gives none, greedy rows are judged by full row statistics alone.

    A row with several tokens, with logits that are not finite or with a rule that is not known is left out. So is one
    whose best token is an end token: engines keep these from being sampled for honest reasons.
    """

    name: str = "sampler"
    needs_stats: bool = True

    def __init__(self, settings: SamplerSettings) -> None:
        super().__init__()
        self._settings = settings
        self._starts: dict[str, SequenceStart] = {}
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._batch: _Batch | None = None
        self._turn = 0
        self._redrawn = 0
        self._sequences = SequenceEvidence(settings.false_alarm_probability)
        self._replica = ReplicaEvidence(settings.replica_steps)

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        self._starts[start.name] = start
        slot = self._slots[start.name] = self._free.pop() if self._free else len(self._slots)
        self._sequences.clear(slot)

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        self._batch = None
        self._starts.pop(sequence, None)
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            self._free.append(slot)

    def observe(self, step: StepView) -> Iterable[Finding]:
        if step.scores is None or step.stats_of is not None:
            return self._from_statistics(step)
        batch = self._batch_of(step)
        if not (batch.rules.greedy.any() or batch.rules.drawn.any()):
            return NO_FINDINGS
        reading = self._read(step)
        found = self._greedy(step, batch, reading) + self._drawn(step, batch, reading) + self._redraw(step, batch)
        return found or NO_FINDINGS

    def _batch_of(self, step: StepView) -> _Batch:
        batch = self._batch
        if batch is None or batch.sequences is not step.sequences or batch.final != step.scores_final:
            starts = [self._starts.get(name) for name in step.sequences]
            rules = [None if start is None else rule_of(start.sampling, final=step.scores_final) for start in starts]
            slots = np.array([self._slots.get(name, -1) for name in step.sequences], np.int64)
            batch = self._batch = _Batch(step.sequences, step.scores_final, Rules.of(rules), slots)
        return batch

    def _read(self, step: StepView) -> _Reading:
        scores, stats = step.scores, step.stats
        assert scores is not None
        tokens = np.fromiter((row[0] if len(row) == 1 else -1 for row in step.tokens), np.int64, len(step.tokens))
        judged = (tokens >= 0) & (tokens < scores.shape[1])
        if stats is not None:
            # Whatever the engine made of such a row, its cause is another guard's.
            judged &= ~stats.nonfinite
        tokens = np.where(judged, tokens, 0)
        raw = stats is not None and not step.scores_final
        maximum = stats.maximum if raw and stats is not None else scores.amax(-1).float().cpu().numpy()
        chosen = chosen_logits(scores, tokens)
        tolerance = Tolerance.of(self._precision(str(scores.dtype)))
        # Above the maximum: these are not the logits that were measured.
        judged &= np.isfinite(maximum) & (chosen <= maximum)
        return _Reading(tokens, judged, maximum, chosen, tolerance.ties(maximum, chosen), tolerance)

    def _precision(self, dtype: str) -> Precision:
        if self._settings.precision != "auto":
            return self._settings.precision
        known: Mapping[str, Precision] = {"torch.bfloat16": "bfloat16", "torch.float16": "float16"}
        return known.get(dtype, "float32")

    def _greedy(self, step: StepView, batch: _Batch, reading: _Reading) -> list[Finding]:
        wrong = batch.rules.greedy & reading.judged
        if wrong.any():
            wrong &= ~reading.tolerance.equal(reading.chosen, reading.maximum)
        found: list[Finding] = []
        for row in np.flatnonzero(wrong).tolist():
            if not self._excused(step, row):
                self._breach(found, step, row, Breach.NOT_THE_BEST, reading, {})
        return found

    def _drawn(self, step: StepView, batch: _Batch, reading: _Reading) -> list[Finding]:
        """Of as many rows as `measured_logits` allows, in turn, chosen before their tokens are looked at."""
        rows = np.flatnonzero(batch.rules.drawn & (batch.slots >= 0))
        if not len(rows):
            return []
        assert step.scores is not None
        rows = self._in_turn(rows, max(1, self._settings.measured_logits // step.scores.shape[1]))
        rows = rows[reading.judged[rows]]
        best = reading.chosen[rows] >= reading.maximum[rows] - reading.ties[rows]
        logs = np.tile(best_factors(), (len(rows), 1))
        found: list[Finding] = []
        below = rows[~best]
        if len(below):
            draws = self._measure(step, below, batch, reading, found)
            excused = np.array([self._excused(step, row) for row in below.tolist()])
            logs[~best] = np.where(
                excused[:, None],
                0.0,
                factors(draws.miss, draws.own, step.scores.shape[1], reading.tolerance.precision),
            )
        self._sequences.add(batch.slots[rows], logs)
        self._weigh(found, step, below, batch.slots[below])
        self._weigh_replica(found, step, rows, logs)
        return found

    def _in_turn(self, rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        if len(rows) <= most:
            return rows
        self._turn = (self._turn + most) % len(rows)
        turned: NDArray[np.int64] = np.sort(np.roll(rows, -self._turn)[:most])
        return turned

    def _measure(
        self, step: StepView, rows: NDArray[np.int64], batch: _Batch, reading: _Reading, found: list[Finding]
    ) -> Draws:
        assert step.scores is not None
        numbers = reading.maximum, reading.chosen, reading.ties
        draws = read_draws(step.scores, rows, *numbers, batch.rules)
        broken = breaches(draws, rows, *numbers, batch.rules, reading.tolerance)
        for index in np.flatnonzero(broken).tolist():
            row = int(rows[index])
            if not self._excused(step, row):
                evidence = {
                    "larger_logits": int(draws.larger[index]),
                    "probability_above": float(draws.above[index]),
                    "probability": float(draws.own[index]),
                }
                self._breach(found, step, row, Breach(int(broken[index])), reading, evidence)
        return draws

    def _weigh(self, found: list[Finding], step: StepView, rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        nats = self._sequences.nats(slots)
        for index in np.flatnonzero(nats >= self._sequences.threshold).tolist():
            evidence = {"evidence_nats": round(float(nats[index]), 1)}
            self._add(found, self._report(KIND, step, int(rows[index]), evidence))

    def _weigh_replica(
        self, found: list[Finding], step: StepView, rows: NDArray[np.int64], logs: NDArray[np.float64]
    ) -> None:
        nats = self._replica.step(logs.sum(0))
        if nats >= self._replica.threshold and len(rows):
            self._replica.restart()
            row = int(rows[logs.max(1).argmax()])
            evidence = {"evidence_nats": round(nats, 1), "replica": True}
            self._add(found, self._report(KIND, step, row, evidence, severity=Severity.WARNING))

    def _redraw(self, step: StepView, batch: _Batch) -> list[Finding]:
        """Rows in turn; greedy ones are settled already."""
        if step.redraw is None:
            return []
        rows = np.flatnonzero(batch.rules.drawn)
        found: list[Finding] = []
        for _ in range(min(self._settings.redrawn_rows, len(rows))):
            self._redrawn += 1
            row = int(rows[self._redrawn % len(rows)])
            again, token = step.redraw(row), step.tokens[row]
            if token != (again,) and not self._excused(step, row):
                self._add(found, self._report(KIND, step, row, {"redrawn": True}))
        return found

    def _excused(self, step: StepView, row: int) -> bool:
        start = self._starts.get(step.sequences[row])
        if start is None or not start.stop_tokens or step.scores is None:
            return False
        return int(step.scores[row].argmax()) in start.stop_tokens

    def _from_statistics(self, step: StepView) -> Iterable[Finding]:
        """A greedy token that is not the argmax of its row, where the argmax has no equal; speculative rows too."""
        stats = step.stats
        if stats is None or stats.argmax is None or stats.margin is None:
            return NO_FINDINGS
        found: list[Finding] = []
        for stats_row in other_than_best(step, stats.argmax):
            best = int(stats.argmax[stats_row])
            row, offset = step.place(stats_row)
            tokens = step.tokens[row]
            # Several tokens from one row of statistics tell nothing of the later ones.
            if offset >= len(tokens) or tokens[offset] == best or (step.stats_of is None and len(tokens) > 1):
                continue
            margin = float(stats.margin[stats_row])
            if (
                margin > 0
                and best >= 0
                and not stats.nonfinite[stats_row]
                and self._is_greedy(step.sequences[row], best)
            ):
                evidence = {"breach": int(Breach.NOT_THE_BEST), "margin": margin}
                token = int(step.output_lengths[row]) + offset
                self._add(found, self._report(KIND, step, row, evidence, token=token))
        return found or NO_FINDINGS

    def _is_greedy(self, sequence: str, best: int) -> bool:
        start = self._starts.get(sequence)
        rule = None if start is None else rule_of(start.sampling)
        return rule is not None and rule.greedy and start is not None and best not in start.stop_tokens

    def _breach(
        self,
        found: list[Finding],
        step: StepView,
        row: int,
        breach: Breach,
        reading: _Reading,
        evidence: Mapping[str, float],
    ) -> None:
        common = {
            "breach": int(breach),
            "logit": float(reading.chosen[row]),
            "maximum": float(reading.maximum[row]),
        }
        self._add(found, self._report(KIND, step, row, common | dict(evidence)))

    def _add(self, found: list[Finding], finding: Finding | None) -> None:
        if finding is not None:
            found.append(finding)


def other_than_best(step: StepView, best: NDArray[np.integer[Any]]) -> Sequence[int]:
    """Rows of statistics whose token may be another than the row's largest logit; all where rows have several."""
    flat = flat_tokens(step)
    if step.stats_of is not None or not flat.one_each or len(flat.tokens) != len(best):
        return range(len(best))
    rows: list[int] = np.flatnonzero(flat.tokens != best).tolist()
    return rows
