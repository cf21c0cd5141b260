"""A token id that the tokenizer cannot decode: outside it, or a padded row of the head."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.finding import Finding
from checkengine.guards.flat import flat_tokens
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.step import StepView


class ImpossibleTokenGuard(ReportsOnce):
    """`possible` has shape (ids,): True where the tokenizer can decode the id."""

    name: str = "impossible_token"

    def __init__(self, possible: NDArray[np.bool_]) -> None:
        super().__init__()
        self._possible = np.array(possible, np.bool_)

    def observe(self, step: StepView) -> Iterable[Finding]:
        flat = flat_tokens(step)
        tokens, size = flat.tokens, len(self._possible)
        inside = (tokens >= 0) & (tokens < size)
        if inside.all() and self._possible[tokens].all():
            return NO_FINDINGS
        fine = inside.copy()
        fine[inside] = self._possible[tokens[inside]]
        found: list[Finding] = []
        for index in np.flatnonzero(~fine).tolist():
            self._tell(found, step, *flat.place(index))
        return found or NO_FINDINGS

    def _tell(self, found: list[Finding], step: StepView, row: int, offset: int) -> None:
        token = step.tokens[row][offset]
        evidence = {"token_id": token, "vocabulary": len(self._possible)}
        first_bad = int(step.output_lengths[row]) + offset
        if finding := self._report("token.impossible", step, row, evidence, token=first_bad):
            found.append(finding)
