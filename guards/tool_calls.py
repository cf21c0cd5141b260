"""Tool calls that run away inside one generation: the same call again and again, or one that never closes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from checkengine.detectors.tool_calls import CallLimits, CallLoops, CallReading
from checkengine.detectors.tool_calls.tags import tags_of
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.settings import ToolCallSettings
from checkengine.guards.step import SequenceStart, StepView

RUNAWAY = "tool_call.runaway"
MALFORMED = "tool_call.malformed"
KINDS = {
    "repeated": RUNAWAY,
    "unclosed": RUNAWAY,
    "endless": RUNAWAY,
    "closings": MALFORMED,
    "openings": MALFORMED,
}
COUNTED = {
    "repeated": "identical_calls",
    "unclosed": "open_tokens",
    "endless": "copies",
    "closings": "stray_closings",
    "openings": "unclosed_calls",
}
"""The evidence field that holds a reading's count."""


def limits_of(settings: ToolCallSettings) -> CallLimits:
    return CallLimits(settings.identical_calls, settings.unclosed_tokens, settings.stray_closings)


def severity_of(reading: CallReading) -> Severity:
    """Identical calls have no other reading; a long call may be a long file."""
    return Severity.ERROR if reading.kind == "repeated" else Severity.WARNING


class _Reading:
    """One sequence: its calls, and where it ought to have ended."""

    __slots__ = ("calls_at_end", "ended_at", "loops", "stops")

    def __init__(self, stops: frozenset[int], limits: CallLimits) -> None:
        self.stops = stops
        self.loops = CallLoops(limits)
        self.ended_at = -1
        """Index of the first token after an end token that the engine did not honour; -1 where there is none."""
        self.calls_at_end = 0

    def end(self, token: int) -> None:
        if self.ended_at < 0:
            self.ended_at = token
            self.calls_at_end = self.loops.recogniser.calls

    @property
    def called_past_end(self) -> bool:
        return self.ended_at >= 0 and self.loops.recogniser.calls > self.calls_at_end

    @property
    def is_quiet(self) -> bool:
        """Tokens in which no tag stands or begins change nothing."""
        return self.ended_at < 0 and self.loops.is_idle


class ToolCallGuard(ReportsOnce):
    """A call behind an end token that was not honoured is a fault at once, and the first bad token is the one after
    that end token. Else it is the first of the second identical call, or of the call that does not close.

    A row costs one look-up by its name and one a token, until a token comes in which a tag stands or begins.
    """

    name: str = "tool_calls"

    def __init__(self, settings: ToolCallSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._limits = limits_of(settings)
        self._pieces = vocabulary.pieces
        self._loud = tags_of().loud_tokens(vocabulary.pieces)
        self._watched = set(self._loud)
        """And the end tokens of live sequences…"""
        self._stops: dict[int, int] = {}
        """…with how many sequences have each."""
        self._readings: dict[str, _Reading] = {}
        self._quiet: set[str] = set()

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        stops = frozenset() if start.ignores_stop else frozenset(start.stop_tokens)
        self._readings[start.name] = _Reading(stops, self._limits)
        for token in stops:
            self._stops[token] = self._stops.get(token, 0) + 1
            self._watched.add(token)

    def observe(self, step: StepView) -> Iterable[Finding]:
        quiet, watched = self._quiet, self._watched
        rows = () if quiet.issuperset(step.sequences) else self._not_quiet(step)
        flat = list(chain.from_iterable(step.tokens))
        if not watched.isdisjoint(flat):
            rows = sorted({*rows, *self._watched_rows(step, flat)})
        found: list[Finding] = []
        for row in rows:
            self._read(found, step, row)
        return found or NO_FINDINGS

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        self._quiet.discard(sequence)
        reading = self._readings.pop(sequence, None)
        for token in reading.stops if reading is not None else ():
            self._stops[token] -= 1
            if not self._stops[token]:
                del self._stops[token]
                if token not in self._loud:
                    self._watched.discard(token)

    def _not_quiet(self, step: StepView) -> list[int]:
        quiet = self._quiet
        return [row for row, sequence in enumerate(step.sequences) if sequence not in quiet]

    def _watched_rows(self, step: StepView, flat: Sequence[int]) -> list[int]:
        watched = self._watched
        if len(flat) == len(step.sequences) and all(step.tokens):
            return [row for row, token in enumerate(flat) if token in watched]
        return [row for row, tokens in enumerate(step.tokens) if not watched.isdisjoint(tokens)]

    def _read(self, found: list[Finding], step: StepView, row: int) -> None:
        sequence, pieces = step.sequences[row], self._pieces
        reading = self._readings.get(sequence) or self._unannounced(sequence)
        index = int(step.output_lengths[row])
        for token in step.tokens[row]:
            told = reading.loops.push(pieces[token] if 0 <= token < len(pieces) else b"", index)
            index += 1
            if told is not None or reading.ended_at >= 0:
                self._judge(found, step, row, reading, told)
            if token in reading.stops:
                reading.end(index)
        if reading.is_quiet:
            self._quiet.add(sequence)
        else:
            self._quiet.discard(sequence)

    def _unannounced(self, sequence: str) -> _Reading:
        self._readings[sequence] = reading = _Reading(frozenset(), self._limits)
        return reading

    def _judge(
        self, found: list[Finding], step: StepView, row: int, reading: _Reading, told: CallReading | None
    ) -> None:
        calls = reading.loops.recogniser.calls
        if reading.called_past_end:
            evidence = {"calls": calls, "past_stop": True}
            self._tell(found, RUNAWAY, Severity.ERROR, step, row, evidence, reading.ended_at)
        elif told is not None:
            evidence = {COUNTED[told.kind]: told.count, "calls": calls}
            self._tell(found, KINDS[told.kind], severity_of(told), step, row, evidence, told.start)

    def _tell(
        self,
        found: list[Finding],
        kind: str,
        severity: Severity,
        step: StepView,
        row: int,
        evidence: Mapping[str, float],
        first_bad: int,
    ) -> None:
        """Once a kind, and once more where it gets worse."""
        told = self._reported.get(step.sequences[row], set())
        if severity == Severity.ERROR and kind in told and f"{kind} error" not in told:
            told.discard(kind)
        if finding := self._report(kind, step, row, evidence, severity=severity, token=first_bad):
            found.append(finding)
            if severity == Severity.ERROR:
                self._reported[step.sequences[row]].add(f"{kind} error")
