"""An end token was emitted, or was the model's choice, and the sequence went on: the engine did not honour it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.finding import Finding
from checkengine.guards.flat import flat_tokens
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce, present
from checkengine.guards.step import SequenceStart, StepView


class IgnoredStopGuard(ReportsOnce):
    """Tokens behind an end token in the same step do not count: a speculative step drafts past the end
    and the engine cuts it there. A sequence that comes back in a later step has not been ended.

    A stop path can also mask the end token. Where a request is plainly greedy the token must be the largest logit, so
    an end token with the largest logit that was not taken is as exact a sign (needs level `full`).
    """

    name: str = "ignored_stop"
    needs_stats: bool = False
    """It uses them where they are there."""

    def __init__(self) -> None:
        super().__init__()
        self._greedy: set[str] = set()
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
        if is_plainly_greedy(start.sampling):
            self._greedy.add(start.name)
        for token in stops:
            self._watched[token] = self._watched.get(token, 0) + 1

    def observe(self, step: StepView) -> Iterable[Finding]:
        findings = [*self._came_back(step)] if self._ended else NO_FINDINGS
        stats = step.stats
        if stats is not None and stats.argmax is not None and step.stats_of is None and self._greedy:
            findings = [*findings, *self._passed_over(step, stats.argmax)]
        flat = flat_tokens(step)
        for index in np.flatnonzero(self._among_watched(flat.tokens)).tolist():
            self._note_end(step, flat.place(index)[0])
        return findings

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        self._ended.pop(sequence, None)
        self._greedy.discard(sequence)
        for token in self._stops.pop(sequence, ()):
            self._watched[token] -= 1
            if not self._watched[token]:
                del self._watched[token]

    def _among_watched(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = np.zeros(len(tokens), np.bool_)
        for watched in self._watched:
            found |= tokens == watched
        return found

    def _came_back(self, step: StepView) -> list[Finding]:
        findings = []
        for row, sequence in enumerate(step.sequences):
            if sequence in self._ended and step.tokens[row]:
                first_bad = self._ended.pop(sequence)
                finding = self._report("stop.ignored", step, row, {"end_token_index": first_bad - 1}, token=first_bad)
                findings.append(finding)
        return present(findings)

    def _passed_over(self, step: StepView, argmax: NDArray[np.int64]) -> list[Finding]:
        """Rows whose largest logit is an end token of theirs and whose token is another one."""
        findings = []
        for row in np.flatnonzero(self._among_watched(argmax)).tolist():
            best, sequence = int(argmax[row]), step.sequences[row]
            if sequence in self._greedy and best in self._stops.get(sequence, ()):
                tokens = step.tokens[row]
                if len(tokens) == 1 and tokens[0] != best:
                    evidence = {"masked_end_token": best}
                    findings.append(self._report("stop.ignored", step, row, evidence))
        return present(findings)

    def _note_end(self, step: StepView, row: int) -> None:
        sequence = step.sequences[row]
        stops = self._stops.get(sequence, frozenset())
        if sequence in self._reported:
            return
        for offset, token in enumerate(step.tokens[row]):
            if token in stops:
                self._ended[sequence] = int(step.output_lengths[row]) + offset + 1
                return


PLAIN: Mapping[str, object] = {
    "temperature": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
OTHER_WAYS = ("min_tokens", "logit_bias", "bad_words", "allowed_token_ids", "structured_outputs", "guided_decoding")
"""Parameters that may rightly keep an end token from being taken; any value that is set makes the request not plain."""


def is_plainly_greedy(sampling: Mapping[str, object]) -> bool:
    """Says temperature 0, and nothing that changes logits before the argmax."""
    if "temperature" not in sampling or any(sampling.get(name) for name in OTHER_WAYS):
        return False
    return all(sampling.get(name, usual) == usual for name, usual in PLAIN.items())
