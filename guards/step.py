"""What guards see of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats

if TYPE_CHECKING:
    # A process without logits never imports torch.
    import torch

    from checkengine.detectors.recurrence import LoopNorms


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """What is fixed for the life of a sequence. `handle` is a number that the engine never reuses."""

    handle: int
    name: str
    prompt_tokens: tuple[int, ...] = ()
    sampling: Mapping[str, object] = field(default_factory=dict)
    """As `SamplingParameters.model_dump()`: temperature, top_k, top_p, min_p, penalties, seed, max_tokens, stop…"""
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end this sequence (end-of-turn tokens and the request's own)."""
    ignores_stop: bool = False
    """The client asked to go on past end tokens; then going on is no fault."""
    language: str | None = None
    """Expected ISO 639-1 code; without it the prompt is the expectation."""
    arrived: float | None = None
    """When the request came, in monotonic seconds as `StepView.time`; None where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class StepView:
    """Row i of everything is `sequences[i]`; only rows that produced a token are here."""

    step: int
    time: float
    """Monotonic seconds."""
    sequences: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    """Tokens produced in this step, one or more a row (speculative decoding)."""
    stats: RowStats | None
    prompt_lengths: NDArray[np.int32]
    output_lengths: NDArray[np.int32]
    """Output tokens of the row before this step's."""
    scores: torch.Tensor | None = None
    """What the tokens were sampled from, before temperature and truncation, shape (rows, vocabulary). It may be read
    while a guard observes, and not be kept."""
    scores_final: bool = False
    """Penalties, biases and masks are in `scores`; else they are the raw logits that `stats` measures."""
    redraw: Callable[[int], int] | None = None
    """Draws the token of a row again, from the same logits, parameters and random numbers but not by the engine's
    production sampler. Takes as long as a draw."""
    proposed: NDArray[np.int32] | None = None
    """Speculative decoding, shape (rows,): draft tokens that were verified in this step; 0 where there were none…"""
    accepted: NDArray[np.int32] | None = None
    """…and how many of them were accepted."""
    loops: LoopNorms | None = None
    """Norms of the hidden state of a block that runs several times in a forward pass, row-aligned."""
    embeddings: NDArray[np.floating[Any]] | None = None
    """Vectors that an embeddings request returns, shape (rows, dimensions)."""
    hidden: torch.Tensor | None = None
    """Residual stream in front of the final norm, shape (rows, hidden size), in CPU memory; not to be kept."""
    masked: NDArray[np.bool_] | None = None
    """Aligned with `stats`: rows that were read behind a mask (grammar, top-k, banned tokens), whose -inf is legal.
    None: all of them are raw."""
    stats_of: NDArray[np.int32] | None = None
    """Where a speculative step verifies several rows of logits a sequence: the row of this view that each row of
    `stats` belongs to, ascending. A sequence's n-th is the one that its n-th token of this step was chosen from; those
    behind its last token were rejected. None: `stats` has one row a sequence."""

    def place(self, stats_row: int) -> tuple[int, int]:
        """Row of this view, and offset among its tokens of this step, that a row of `stats` stands for."""
        if self.stats_of is None:
            return stats_row, 0
        row = int(self.stats_of[stats_row])
        return row, stats_row - int(np.searchsorted(self.stats_of, row))
