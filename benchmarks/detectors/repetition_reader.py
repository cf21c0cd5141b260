"""Whole replies through the repetition detector."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.repetition import (
    RepetitionLimits,
    RepetitionReading,
    RepetitionStreams,
    plain_units,
    readings,
)

Tokens = NDArray[np.int32]


class Reader:
    """Whole replies through one stream, one call a reply."""

    def __init__(self, units: Tokens | None = None, limits: RepetitionLimits | None = None) -> None:
        self._units = units
        self._streams = RepetitionStreams(limits)

    def read(self, tokens: Tokens) -> list[RepetitionReading]:
        slot = self._streams.open()
        units = plain_units(tokens) if self._units is None else self._units[tokens]
        events = self._streams.push(np.array([slot]), np.array([len(units)]), units)
        found = [reading for reading in readings(events) if reading.rule != "recovered"]
        self._streams.close(slot)
        return found
