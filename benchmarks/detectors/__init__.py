"""What the detectors catch, how often they are wrong and what they cost: `checkengine bench detectors`.

One module a detector, each with `figures(options) -> list of figures` (checkengine.benchmarks.figure).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODULES = (
    "logits",
    "sampling",
    "recurrence",
    "speculation",
    "repetition",
    "salad",
    "tool_calls",
    "language",
    "drift",
    "scan",
    "together",
)


@dataclass(frozen=True, slots=True)
class DetectorOptions:
    data: Path | None = None
    """Folder of public data; a figure that needs a missing file is left out and the file named on stderr."""
    quick: bool = False
    """A slice of every figure's work: the whole command in two minutes instead of fifteen."""
