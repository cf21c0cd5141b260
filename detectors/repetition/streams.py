"""Many streams at once: one compiled call for all tokens of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.repetition import kernel
from checkengine.detectors.repetition.limits import RepetitionLimits
from checkengine.detectors.repetition.state import COUNTERS, RING, STREAM

STREAM_BYTES = STREAM.itemsize
RULES = {
    kernel.CYCLE: "cycle",
    kernel.NEAR_COPY: "near_copy",
    kernel.REUSED_TEXT: "reuse",
    kernel.BLANK_TEXT: "blank",
    kernel.RECOVERED: "recovered",
}


@dataclass(frozen=True, slots=True)
class RepetitionReading:
    """What is to be told of one row of a call, once each: a warning, a stop, a recovery."""

    row: int
    offset: int
    """Unit of the row's call at which it was known."""
    rule: str
    """cycle, near_copy, reuse, blank or recovered."""
    stop: bool
    """True where the repetition has gone on for so long, or so certainly, that it may be stopped."""
    period: int
    """Tokens from one copy to the next (reuse: the last one seen); 0 for a recovery."""
    span: int
    """Tokens that the repetition covers; for a recovery, new ones since."""
    start: int
    """Position in the stream of the second copy's first token."""
    new_share: float
    """Of what it covers, 0 … 1."""

    @property
    def copies(self) -> float:
        return self.span / self.period if self.period else 0.0


@lru_cache(16)
def _record(limits: RepetitionLimits) -> NDArray[np.void]:
    """Read only: a stream is made for every request."""
    return limits.record()


class RepetitionStreams:
    """State of many streams, 62.3 KiB each, in arrays with one row a stream; a stream is known by its slot."""

    def __init__(self, limits: RepetitionLimits | None = None, capacity: int = 1) -> None:
        self.limits = limits or RepetitionLimits()
        self._limits = _record(self.limits)
        self._free = list(range(capacity))[::-1]
        self._streams = np.zeros(capacity, STREAM)
        self._events = np.zeros((64, kernel.EVENT_FIELDS), np.int64)
        self._unknown = np.full(64, np.nan, np.float32)

    def open(self) -> int:
        """A slot for a new stream. What another stream left in ring and index is never taken for the new one's."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        stream = self._streams[slot]
        for name in COUNTERS:
            stream[name] = 0
        return slot

    def close(self, slot: int) -> None:
        self._free.append(slot)

    def push(
        self,
        slots: NDArray[np.int64],
        ends: NDArray[np.int64],
        units: NDArray[np.int32],
        entropy: NDArray[np.float32] | None = None,
        calm: float = 0.0,
    ) -> NDArray[np.int64]:
        """One step: row i's units are units[ends[i - 1]:ends[i]] and go to stream slots[i].

        `entropy` (nats, one a unit, NaN where unknown) up to `calm` marks logits that have collapsed. The events, shape
        (n, 7), are valid until the next call; `readings` reads them.
        """
        count = len(units)
        if count > len(self._events):
            self._events = np.zeros((2 * count, kernel.EVENT_FIELDS), np.int64)
            self._unknown = np.full(2 * count, np.nan, np.float32)
        found = kernel.push_rows(
            self._streams,
            slots,
            ends,
            units,
            self._unknown if entropy is None else entropy,
            calm,
            self._limits,
            self._events,
        )
        return self._events[:found]

    def position(self, slot: int) -> int:
        """Units that the stream has had."""
        return int(self._streams["position"][slot])

    def repeats(self, slot: int) -> bool:
        """True while a repetition that was told goes on."""
        return bool(self._streams["stage"][slot] == kernel.WARNED)

    def last(self, slot: int, count: int) -> NDArray[np.int32]:
        """The stream's last `count` units, oldest first; at most what the ring holds."""
        position = self.position(slot)
        count = min(count, position, RING)
        found: NDArray[np.int32] = self._streams["ring"][slot][np.arange(position - count, position) & (RING - 1)]
        return found

    def _grow(self) -> None:
        old = len(self._streams)
        self._streams = np.concatenate((self._streams, np.zeros(old, STREAM)))
        self._free = list(range(old, 2 * old))[::-1]


def readings(events: NDArray[np.int64]) -> Iterator[RepetitionReading]:
    for row, offset, kind, period, span, start, new in events.tolist():
        stop = kind >= kernel.STOP
        yield RepetitionReading(row, offset, RULES[kind - kernel.STOP * stop], stop, period, span, start, new / 1000)


def warm_up() -> None:
    """Compile (or load from numba's cache) what the streams run, so that no step does."""
    streams = RepetitionStreams()
    one = np.ones(1, np.int64)
    streams.push(one - streams.open() - 1, one, np.zeros(1, np.int32))
