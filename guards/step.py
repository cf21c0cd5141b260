"""What guards see of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats


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
