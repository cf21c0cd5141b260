"""Tool calls that run away inside one generation: the same call again and again, or one that never closes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checkengine.detectors.tool_calls import CallLimits, CallLoops, CallReading
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.settings import ToolCallSettings
from checkengine.guards.step import SequenceStart, StepView

RUNAWAY = "tool_call.runaway"
MALFORMED = "tool_call.malformed"
KINDS = {"repeated": RUNAWAY, "unclosed": RUNAWAY, "closings": MALFORMED}
COUNTED = {"repeated": "identical_calls", "unclosed": "open_tokens", "closings": "stray_closings"}


class _Reading:
    """One sequence: its calls, and where it ought to have ended."""

    __slots__ = ("calls_at_end", "ended_at", "first", "loops", "stops")

    def __init__(self, first: int, stops: frozenset[int], limits: CallLimits) -> None:
        self.first = first
        """Index of the first output token that this reading saw."""
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


class ToolCallGuard(ReportsOnce):
    """A call behind an end token that was not honoured is a fault at once, and the first bad token is the one after
    that end token. Else it is the first of the second identical call, or of the call that does not close."""

    name: str = "tool_calls"

    def __init__(self, settings: ToolCallSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._limits = CallLimits(settings.identical_calls, settings.unclosed_tokens, settings.stray_closings)
        self._pieces = vocabulary.pieces
        self._starts: dict[str, SequenceStart] = {}
        self._readings: dict[str, _Reading] = {}

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        self._starts[start.name] = start

    def observe(self, step: StepView) -> Iterable[Finding]:
        found: list[Finding] = []
        pieces, size, readings = self._pieces, len(self._pieces), self._readings
        for row, (sequence, tokens) in enumerate(zip(step.sequences, step.tokens, strict=True)):
            reading = readings.get(sequence) or self._reading(step, row)
            for offset, token in enumerate(tokens):
                told = reading.loops.push(pieces[token] if 0 <= token < size else b"")
                if told is not None or reading.ended_at >= 0:
                    self._judge(found, step, row, reading, told)
                if token in reading.stops:
                    reading.end(int(step.output_lengths[row]) + offset + 1)
        return found or NO_FINDINGS

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        self._starts.pop(sequence, None)
        self._readings.pop(sequence, None)

    def _reading(self, step: StepView, row: int) -> _Reading:
        sequence = step.sequences[row]
        start = self._starts.get(sequence)
        stops = frozenset() if start is None or start.ignores_stop else frozenset(start.stop_tokens)
        self._readings[sequence] = reading = _Reading(int(step.output_lengths[row]), stops, self._limits)
        return reading

    def _judge(
        self, found: list[Finding], step: StepView, row: int, reading: _Reading, told: CallReading | None
    ) -> None:
        if reading.called_past_end:
            evidence = {"calls": reading.loops.recogniser.calls, "past_stop": True}
            self._tell(found, RUNAWAY, step, row, evidence, reading.ended_at)
        elif told is not None:
            evidence = {COUNTED[told.kind]: told.count, "calls": reading.loops.recogniser.calls}
            self._tell(found, KINDS[told.kind], step, row, evidence, reading.first + told.start)

    def _tell(
        self,
        found: list[Finding],
        kind: str,
        step: StepView,
        row: int,
        evidence: Mapping[str, float],
        first_bad: int,
    ) -> None:
        severity = Severity.ERROR if kind == RUNAWAY else Severity.WARNING
        if finding := self._report(kind, step, row, evidence, severity=severity, token=first_bad):
            found.append(finding)
