"""What we hang on vLLM's own messages between scheduler and workers, in an attribute that vLLM never looks at.

Both messages are plain dataclasses; vLLM hands them on as objects or pickled, and either way the attribute stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats

ATTRIBUTE = "checkengine"


@dataclass(frozen=True, slots=True)
class StepReading:
    """From a worker: statistics of one step's raw logits. Row i belongs to request `requests[of[i]]`."""

    requests: tuple[str, ...]
    of: NDArray[np.int32]
    """Shape (rows of logits,), ascending; a request has several rows where draft tokens are verified."""
    stats: RowStats


@dataclass(frozen=True, slots=True)
class ToWorkers:
    """From the scheduler: what the workers do before the step that the message starts."""

    step: int = -1
    """Number of the message; findings and records of the step that it starts bear it too."""
    refill: tuple[int, ...] = ()
    """Blocks that held a stopped sequence's KV and were handed on: overwritten before anything reads them."""
    capture: tuple[Any, ...] = ()
    """Orders for the black box."""
    off: bool = False
    """The sidecar as a whole is switched off: nothing is measured or recorded."""
    arm: bool = False
    """Parts that failed and went off try again."""


def reading_of(model_runner_output: Any) -> StepReading | None:
    found = getattr(model_runner_output, ATTRIBUTE, None)
    return found if isinstance(found, StepReading) else None


def orders_of(scheduler_output: Any) -> ToWorkers:
    found = getattr(scheduler_output, ATTRIBUTE, None)
    return found if isinstance(found, ToWorkers) else ToWorkers()


def attach(message: Any, what: StepReading | ToWorkers) -> None:
    setattr(message, ATTRIBUTE, what)
