"""An output whose tokens follow each other at random: what corrupted attention writes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.salad import SaladBatch, SaladReading, SaladTables
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.flat import flat_tokens
from checkengine.guards.prompt import prompt_text
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce, RowSlots
from checkengine.guards.settings import SaladSettings
from checkengine.guards.step import SequenceStart, StepView

KIND = "text.salad"
NO_ENTROPY: NDArray[np.float32] = np.empty(0, np.float32)


class SaladGuard(ReportsOnce):
    """Two compiled calls a step for the whole batch. The first bad token is the one where the evidence began, give or
    take a few. Entropies are read where the step has them; none are asked for."""

    name: str = "salad"
    version: int = 3

    def __init__(self, settings: SaladSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._tables = SaladTables(vocabulary)
        self._batch = SaladBatch(self._tables, settings.evidence)
        self._slots: dict[str, int] = {}
        self._rows = RowSlots(self._slot)
        if self._tables.available:
            self._batch.compile()

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        if self._tables.available:
            scripts = prompt_text(start, self._vocabulary).scripts
            self._slots[start.name] = self._batch.open(start.prompt_tokens, scripts)

    def observe(self, step: StepView) -> Iterable[Finding]:
        if not self._tables.available:
            return NO_FINDINGS
        rows = self._rows.of(step)
        flat = flat_tokens(step)
        if flat.one_each:
            fired = self._batch.push(rows, flat.tokens, entropies_of(step))
        else:
            fired = self._batch.push(np.repeat(rows, np.diff(flat.ends, prepend=0)), flat.tokens)
        return [self._tell(step, *flat.place(int(index))) for index in fired] if len(fired) else NO_FINDINGS

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            self._batch.close(slot)
            self._rows.forget()

    def _slot(self, step: StepView, row: int) -> int:
        sequence = step.sequences[row]
        slot = self._slots.get(sequence)
        if slot is None:
            slot = self._slots[sequence] = self._batch.open()
        return slot

    def _tell(self, step: StepView, row: int, offset: int) -> Finding:
        """Once a sequence: what has alarmed is read no further."""
        sequence = step.sequences[row]
        reading = self._batch.reading(self._slots[sequence])
        first_bad = int(step.output_lengths[row]) + offset + 1 - reading.tokens
        evidence = evidence_of(reading)
        return Finding(KIND, sequence, Severity.ERROR, step.step, first_bad, self.name, self.version, evidence)


def entropies_of(step: StepView) -> NDArray[np.float32]:
    """Row-aligned; none where rows were not measured in full, or not one each."""
    entropy = step.stats.entropy if step.stats is not None else None
    return entropy if entropy is not None and len(entropy) == len(step.sequences) else NO_ENTROPY


def evidence_of(reading: SaladReading) -> dict[str, float]:
    """Nats in all and by what they come from, and the tokens in which they added up."""
    return {
        "evidence_nats": round(reading.evidence, 1),
        "tokens": reading.tokens,
        "transition_nats": round(reading.transitions, 1),
        "mark_nats": round(reading.marks, 1),
        "word_nats": round(reading.words, 1),
        "logit_nats": round(reading.logits, 1),
    }
