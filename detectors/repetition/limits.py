"""From when on repetition counts."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

LONGEST_PERIOD = 4096
SIXTEENTHS = 16
"""Evidence is counted in sixteenths of a word, so that it does not depend on how finely a tokenizer cuts."""


@dataclass(frozen=True, slots=True)
class RepetitionLimits:
    """Spans are in tokens (units of text), shares in per cent; `reuse`, `likeness` and `weight` in words' worth."""

    longest_period: int = LONGEST_PERIOD
    repeated: int = 24
    """Repeated tokens before a cycle is told…"""
    slack: int = 12
    """…and tokens beyond the second copy…"""
    weight: int = 22
    """…and what they are worth: letters of scripts that tokenizers cut finely count less."""
    short_span: int = 96
    """Tokens that a cycle without words must cover: dividers, ellipses, zero-filled numbers, table rules."""
    likeness: int = 24
    """Tokens after the first copy from which near-copies count…"""
    copied: int = 60
    """…the share of them that must agree with one of the two copies before…"""
    copied_list: int = 86
    """…and the share where what differs always stands in the same place, as in a list."""
    reuse: int = 30
    """Tokens that end a 4-gram seen before less those that do not, from which a text counts as reusing itself."""
    code: int = 36
    """Largest share of signs of code, numbers and indentation at which near-copies and reuse count."""
    blank_run: int = 96
    """Tokens in a row that show nothing."""
    calm_copies: int = 3
    """A cycle whose logits have collapsed may stop after so many copies…"""
    calm_span: int = 48
    """…over so many tokens…"""
    calm_bare_span: int = 128
    """…and so many without words: nothing else could follow in the middle of a divider."""
    copies: int = 4
    """Any cycle may stop after so many copies…"""
    span: int = 512
    """…over so many tokens without anything new."""
    prose_copies: int = 8
    """A cycle of prose may stop after so many copies…"""
    prose_span: int = 224
    """…over so many tokens: people and healthy models write the same sentence so often only where they are asked to."""
    near_span: int = 1024
    """Tokens that near-copies and reuse must cover with hardly anything new before they may stop."""
    blank_span: int = 512
    recovery: int = 32
    """New tokens after which a loop that was told has ended by itself."""
    cycles_only: bool = False
    """Follow exact cycles and nothing else."""

    def __post_init__(self) -> None:
        if not 1 <= self.longest_period <= LONGEST_PERIOD:
            raise ValueError(f"longest_period is {self.longest_period}; it must be 1 … {LONGEST_PERIOD}")
        if min(self.calm_copies, self.copies, self.prose_copies) < 2 or self.repeated < 8:
            raise ValueError("a cycle needs at least 2 copies and 8 repeated tokens")

    def record(self) -> NDArray[np.void]:
        """As the kernel reads them: one record of int64, weights in sixteenths, shape (1,)."""
        names = [field.name for field in fields(self)]
        values = tuple(int(getattr(self, name)) * _scale(name) for name in names)
        return np.array([values], [(name, np.int64) for name in names])


def _scale(name: str) -> int:
    return SIXTEENTHS if name in ("weight", "likeness", "reuse") else 1
