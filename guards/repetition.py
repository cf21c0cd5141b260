"""A sequence that repeats itself: told early, stopped late, and told again where it ends by itself.

Healthy models repeat themselves too (tables, refrains, padding), so this guard observes by default, and even an exact
cycle is a warning until it has gone on for long without anything new or the logits allow nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.repetition import (
    RepetitionLimits,
    RepetitionReading,
    RepetitionStreams,
    plain_units,
    readings,
    token_units,
    warm_up,
)
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.flat import MOST_TOKEN, WILD, flat_tokens
from checkengine.guards.repetition_request import asks_for_repetition, holds
from checkengine.guards.rows import NO_FINDINGS, RowSlots
from checkengine.guards.settings import RepetitionSettings
from checkengine.guards.step import SequenceStart, StepView

LOOP, ENDED = "repetition.loop", "repetition.recovered"


def limits_of(settings: RepetitionSettings) -> RepetitionLimits:
    return RepetitionLimits(
        longest_period=settings.longest_period,
        repeated=settings.warn_repeated,
        short_span=settings.short_span,
        calm_copies=settings.minimum_copies,
        calm_span=settings.minimum_span,
        copies=settings.stop_copies,
        span=settings.stop_span,
        prose_copies=settings.stop_prose_copies,
        prose_span=settings.stop_prose_span,
        near_span=2 * settings.stop_span,
        blank_run=settings.blank_run,
        blank_span=settings.stop_span,
        recovery=settings.recovery,
    )


def evidence_of(reading: RepetitionReading) -> dict[str, float | int | bool]:
    return {
        "period": reading.period,
        "copies": round(reading.copies, 2),
        "span_tokens": reading.span,
        "new_share": round(reading.new_share, 3),
        **{rule: True for rule in ("near_copy", "reuse", "blank") if rule == reading.rule},
    }


class Told:
    """What was told of one sequence: each stage once."""

    __slots__ = ("stages",)

    def __init__(self) -> None:
        self.stages: set[tuple[str, Severity]] = set()

    def severity(self, reading: RepetitionReading, asked: bool) -> Severity | None:
        """None where it was told. What the prompt asked for is only noted, and a stop is withheld."""
        kind = ENDED if reading.rule == "recovered" else LOOP
        severity = Severity.ERROR if reading.stop else Severity.WARNING
        if asked or kind == ENDED:
            severity = Severity.INFO
        if (kind, severity) in self.stages:
            return None
        self.stages.add((kind, severity))
        return severity


class RepetitionGuard:
    """The first bad token is the first one of the second copy. One compiled call a step for the whole batch."""

    name: str = "repetition"
    version: int = 3
    needs_stats: bool = False
    """Statistics of level `full` are used where there are some: collapsed logits stop a cycle earlier."""

    def __init__(self, settings: RepetitionSettings, vocabulary: Vocabulary | None = None) -> None:
        """Without a vocabulary every token counts as a word. Compiles, so that no step does."""
        self._settings = settings
        self._vocabulary = vocabulary
        self._units = None if vocabulary is None else token_units(vocabulary.pieces)
        self._streams = RepetitionStreams(limits_of(settings), capacity=64)
        self._slots: dict[str, int] = {}
        self._first: dict[str, int] = {}
        """Index of the first output token that the guard saw."""
        self._prompts: dict[str, tuple[int, ...]] = {}
        self._told: dict[str, Told] = {}
        self._rows = RowSlots(self._slot)
        warm_up()

    def begin(self, start: SequenceStart) -> None:
        self._prompts[start.name] = start.prompt_tokens

    def forget(self, sequence: str) -> None:
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            self._streams.close(slot)
        for kept in (self._first, self._prompts, self._told):
            kept.pop(sequence, None)
        self._rows.forget()

    def observe(self, step: StepView) -> Iterable[Finding]:
        flat = flat_tokens(step)
        entropy = self._entropy(step) if flat.one_each else None
        events = self._streams.push(
            self._rows.of(step), flat.ends, self._units_of(flat.tokens), entropy, self._settings.collapsed_entropy
        )
        return list(self._findings(step, events)) if len(events) else NO_FINDINGS

    def _slot(self, step: StepView, row: int) -> int:
        name = step.sequences[row]
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = self._streams.open()
            self._first[name] = int(step.output_lengths[row])
        return slot

    def _units_of(self, tokens: NDArray[np.int64]) -> NDArray[np.int32]:
        """A number that the vocabulary has not counts as a word of its own."""
        if self._units is None:
            return plain_units(tokens)
        strange = (tokens < 0) | (tokens >= len(self._units))
        if not strange.any():
            return self._units[tokens]
        units: NDArray[np.int32] = np.where(strange, plain_units(tokens), self._units[np.where(strange, 0, tokens)])
        return units

    def _entropy(self, step: StepView) -> NDArray[np.float32] | None:
        """Of each token. Rows of several tokens (drafts) have one row of statistics: unknown."""
        if step.stats is None or step.stats.entropy is None:
            return None
        return step.stats.entropy if len(step.stats.entropy) == len(step.tokens) else None

    def _findings(self, step: StepView, events: NDArray[np.int64]) -> Iterable[Finding]:
        for reading in readings(events):
            sequence = step.sequences[reading.row]
            asked = reading.rule != "recovered" and self._asked_for(sequence, reading)
            severity = self._told.setdefault(sequence, Told()).severity(reading, asked)
            if severity is not None:
                yield self._finding(step, sequence, reading, severity)

    def _finding(self, step: StepView, sequence: str, reading: RepetitionReading, severity: Severity) -> Finding:
        kind = ENDED if reading.rule == "recovered" else LOOP
        token = self._first[sequence] + reading.start
        evidence: Mapping[str, float | int | bool] = evidence_of(reading)
        return Finding(kind, sequence, severity, step.step, token, self.name, self.version, evidence)

    def _asked_for(self, sequence: str, reading: RepetitionReading) -> bool:
        """The prompt asks for repetition, or holds two copies of what is repeated."""
        prompt = self._prompts.get(sequence, ())
        if not prompt:
            return False
        if self._vocabulary is not None and asks_for_repetition(self._vocabulary.text(prompt)):
            return True
        if not reading.period:
            return False
        unit = self._streams.last(self._slots[sequence], min(2 * reading.period, 4096))
        return holds(self._units_of(np.array([_tame(token) for token in prompt], np.int64)), unit)


def _tame(token: int) -> int:
    return token if -MOST_TOKEN <= token < MOST_TOKEN else WILD
