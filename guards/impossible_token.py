"""A token id that the tokenizer cannot decode: outside it, or a padded row of the head."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.finding import Finding
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.step import StepView


class ImpossibleTokenGuard(ReportsOnce):
    """`possible` has shape (ids,): True where the tokenizer can decode the id."""

    name: str = "impossible_token"

    def __init__(self, possible: NDArray[np.bool_]) -> None:
        super().__init__()
        # Indexing bytes costs a tenth of indexing an array, token by token.
        self._possible = np.asarray(possible, np.bool_).tobytes()

    def observe(self, step: StepView) -> Iterable[Finding]:
        possible, size = self._possible, len(self._possible)
        found: list[Finding] = []
        for row, tokens in enumerate(step.tokens):
            for offset, token in enumerate(tokens):
                if not (0 <= token < size and possible[token]):
                    self._tell(found, step, row, offset)
                    break
        return found or NO_FINDINGS

    def _tell(self, found: list[Finding], step: StepView, row: int, offset: int) -> None:
        token = step.tokens[row][offset]
        evidence = {"token_id": token, "vocabulary": len(self._possible)}
        first_bad = int(step.output_lengths[row]) + offset
        if finding := self._report("token.impossible", step, row, evidence, token=first_bad):
            found.append(finding)
