"""Tool calls that run away inside one generation: the same call again and again, or one that never closes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checkengine.detectors.tool_calls.call import ToolCall
from checkengine.detectors.tool_calls.recogniser import ToolCallRecogniser
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.settings import ToolCallSettings
from checkengine.guards.step import SequenceStart, StepView

RUNAWAY = "tool_call.runaway"
MALFORMED = "tool_call.malformed"
CALLS_REMEMBERED = 64


class _Reading:
    """One sequence: what was called how often, and where it ought to have ended."""

    __slots__ = ("ended_at", "first", "recogniser", "seen", "stops", "stray_at")

    def __init__(self, first: int, stops: frozenset[int]) -> None:
        self.first = first
        """Index of the first output token that this reading saw."""
        self.stops = stops
        self.recogniser = ToolCallRecogniser()
        self.seen: dict[bytes, int] = {}
        self.ended_at: int | None = None
        """Index of the first token after an end token that the engine did not honour."""
        self.stray_at: int | None = None

    def times(self, call: ToolCall) -> int:
        """How often this call was seen, this one included."""
        times = self.seen.pop(call.digest, 0) + 1
        self.seen[call.digest] = times
        if len(self.seen) > CALLS_REMEMBERED:
            del self.seen[next(iter(self.seen))]
        return times


class ToolCallGuard(ReportsOnce):
    """The first bad token of a repeated call is the first one after the ignored stop, where there was one; else the
    repeated call's first."""

    name: str = "tool_calls"

    def __init__(self, settings: ToolCallSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._settings = settings
        self._pieces = vocabulary.pieces
        self._starts: dict[str, SequenceStart] = {}
        self._readings: dict[str, _Reading] = {}

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        self._starts[start.name] = start

    def observe(self, step: StepView) -> Iterable[Finding]:
        found: list[Finding] = []
        pieces, size = self._pieces, len(self._pieces)
        for row, (sequence, tokens) in enumerate(zip(step.sequences, step.tokens, strict=True)):
            reading = self._readings.get(sequence) or self._reading(step, row)
            recogniser = reading.recogniser
            for offset, token in enumerate(tokens):
                calls = recogniser.push(pieces[token] if 0 <= token < size else b"")
                if calls or recogniser.open_since is not None or recogniser.stray_closings:
                    self._check(found, step, row, offset, reading, calls)
                if token in reading.stops and reading.ended_at is None:
                    reading.ended_at = int(step.output_lengths[row]) + offset + 1
        return found or NO_FINDINGS

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        self._starts.pop(sequence, None)
        self._readings.pop(sequence, None)

    def _reading(self, step: StepView, row: int) -> _Reading:
        sequence = step.sequences[row]
        start = self._starts.get(sequence)
        stops = frozenset() if start is None or start.ignores_stop else frozenset(start.stop_tokens)
        self._readings[sequence] = reading = _Reading(int(step.output_lengths[row]), stops)
        return reading

    def _check(
        self,
        found: list[Finding],
        step: StepView,
        row: int,
        offset: int,
        reading: _Reading,
        calls: tuple[ToolCall, ...],
    ) -> None:
        for call in calls:
            self._check_repeat(found, step, row, reading, call)
        recogniser = reading.recogniser
        if recogniser.open_tokens > self._settings.open_call_limit:
            evidence = {"open_tokens": recogniser.open_tokens, "calls": recogniser.calls}
            opened = recogniser.open_since or 0
            self._tell(found, RUNAWAY, step, row, evidence, reading.first + opened)
        self._check_closings(found, step, row, int(step.output_lengths[row]) + offset, reading)

    def _check_repeat(self, found: list[Finding], step: StepView, row: int, reading: _Reading, call: ToolCall) -> None:
        times, began = reading.times(call), reading.first + call.start
        past_stop = reading.ended_at is not None and began >= reading.ended_at
        if times < self._settings.same_call_limit and not past_stop:
            return
        first_bad = reading.ended_at if past_stop and reading.ended_at is not None else began
        evidence = {"times": times, "calls": reading.recogniser.calls, "past_stop": past_stop}
        self._tell(found, RUNAWAY, step, row, evidence, first_bad)

    def _check_closings(self, found: list[Finding], step: StepView, row: int, token: int, reading: _Reading) -> None:
        strays = reading.recogniser.stray_closings
        if not strays:
            reading.stray_at = None
            return
        reading.stray_at = token if reading.stray_at is None else reading.stray_at
        if strays >= self._settings.stray_closing_limit:
            self._tell(found, MALFORMED, step, row, {"stray_closings": strays}, reading.stray_at)

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
