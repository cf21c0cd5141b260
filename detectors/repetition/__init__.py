"""Repetition in a stream: exact cycles, near-copies, reuse of its own pieces, runs of nothing.

numba loads at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from checkengine.detectors.repetition.limits import RepetitionLimits
from checkengine.detectors.repetition.share import seq_rep_n

if TYPE_CHECKING:
    from checkengine.detectors.repetition.streams import RepetitionReading, RepetitionStreams, readings, warm_up
    from checkengine.detectors.repetition.text import TextUnits
    from checkengine.detectors.repetition.units import plain_units, token_units

__all__ = [
    "RepetitionLimits",
    "RepetitionReading",
    "RepetitionStreams",
    "TextUnits",
    "plain_units",
    "readings",
    "seq_rep_n",
    "token_units",
    "warm_up",
]

_HOME = {
    "RepetitionReading": "streams",
    "RepetitionStreams": "streams",
    "TextUnits": "text",
    "plain_units": "units",
    "readings": "streams",
    "token_units": "units",
    "warm_up": "streams",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"checkengine.detectors.repetition.{_HOME[name]}"), name)
