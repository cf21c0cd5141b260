"""An end token was emitted and the sequence went on: the engine did not honour it."""

from __future__ import annotations

from collections.abc import Iterable

from checkengine.guards.finding import Finding
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.step import SequenceStart, StepView


class IgnoredStopGuard(ReportsOnce):
    """Tokens behind an end token in the same step do not count: a speculative step drafts past the end
    and the engine cuts it there. A sequence that comes back in a later step has not been ended.
    """

    name: str = "ignored_stop"

    def __init__(self) -> None:
        super().__init__()
        self._stops: dict[str, frozenset[int]] = {}
        self._watched: dict[int, int] = {}
        """End tokens of all live sequences, with how many sequences have each: one look-up clears a healthy row."""
        self._ended: dict[str, int] = {}
        """Index of the first token after the end token, for sequences that ought to be over."""

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        if start.ignores_stop or not start.stop_tokens:
            return
        stops = frozenset(start.stop_tokens)
        self._stops[start.name] = stops
        for token in stops:
            self._watched[token] = self._watched.get(token, 0) + 1

    def observe(self, step: StepView) -> Iterable[Finding]:
        findings = self._came_back(step) if self._ended else NO_FINDINGS
        watched = self._watched
        for row, tokens in enumerate(step.tokens):
            for token in tokens:
                if token in watched:
                    self._note_end(step, row)
                    break
        return findings

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        self._ended.pop(sequence, None)
        for token in self._stops.pop(sequence, ()):
            self._watched[token] -= 1
            if not self._watched[token]:
                del self._watched[token]

    def _came_back(self, step: StepView) -> list[Finding]:
        findings = []
        for row, sequence in enumerate(step.sequences):
            if sequence in self._ended and step.tokens[row]:
                first_bad = self._ended.pop(sequence)
                finding = self._report("stop.ignored", step, row, {"end_token_index": first_bad - 1}, token=first_bad)
                findings.append(finding)
        return [finding for finding in findings if finding is not None]

    def _note_end(self, step: StepView, row: int) -> None:
        sequence = step.sequences[row]
        stops = self._stops.get(sequence, frozenset())
        if sequence in self._reported:
            return
        for offset, token in enumerate(step.tokens[row]):
            if token in stops:
                self._ended[sequence] = int(step.output_lengths[row]) + offset + 1
                return
