"""Series over all requests of a model (answers' lengths, finish reasons, first chunks), watched for drift.

Values are handed on in batches, on a thread of their own: a test over a batch takes longer than a token does.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from checkengine.engine_shim.proxy.parts import ExchangeEnd
from checkengine.guards.failure import place
from checkengine.guards.text import SeriesGuard, TextFinding

logger = logging.getLogger("checkengine.proxy")

MOST_MODELS = 8
BATCH = 32
WAITING = 64
"""Batches; further ones are dropped."""
Series = tuple[str, str]
"""Model and name."""


@runtime_checkable
class TakesMany(Protocol):
    """One call of compiled code for a batch: while Python runs here, no token passes."""

    def push_many(self, values: Sequence[float | str]) -> list[TextFinding]: ...


class FleetSeries:
    """`make` makes the guard of one series; `told` gets what it found, on the thread."""

    def __init__(self, make: Callable[[str], SeriesGuard], told: Callable[[str, TextFinding], None]) -> None:
        self.dropped = 0
        self._make, self._told = make, told
        self._values: dict[Series, list[float | str]] = {}
        self._models: set[str] = set()
        self._guards: dict[Series, SeriesGuard | None] = {}
        self._queue: queue.Queue[tuple[Series, list[float | str]] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="checkengine-series", daemon=True)
        self._thread.start()

    def ended(self, end: ExchangeEnd) -> None:
        """Answered requests only: an error has no length."""
        if end.status != 200 or end.error is not None or not end.finish_reasons:
            return
        model = end.model
        if model not in self._models:
            if len(self._models) >= MOST_MODELS:
                return
            self._models.add(model)
        self._add((model, "output_tokens"), float(end.output_tokens))
        self._add((model, "finish_reason"), end.finish_reasons[0])
        if end.ttft_seconds is not None:
            self._add((model, "ttft"), end.ttft_seconds)

    def settle(self) -> None:
        """Waits until all full batches are read."""
        self._queue.join()

    def close(self, timeout: float = 10.0) -> None:
        """Reads what waits, and lets go of the guards: compiled parts of them complain where they outlive Python."""
        for series, values in self._values.items():
            self._put(series, values)
        self._values = {}
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._guards.clear()

    def _add(self, series: Series, value: float | str) -> None:
        values = self._values.setdefault(series, [])
        values.append(value)
        if len(values) >= BATCH:
            self._values[series] = []
            self._put(series, values)

    def _put(self, series: Series, values: list[float | str]) -> None:
        try:
            self._queue.put_nowait((series, values))
        except queue.Full:
            self.dropped += len(values)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            series, values = batch
            try:
                self._read(series, values)
            except Exception as error:
                # It has lost the thread of its series: it reads no more of it.
                self._guards[series] = None
                logger.error("the guard of %s raised %s %s and is off", series[1], type(error).__name__, place(error))
            finally:
                self._queue.task_done()

    def _read(self, series: Series, values: list[float | str]) -> None:
        if series not in self._guards:
            self._guards[series] = self._make(series[1])
        guard = self._guards[series]
        if guard is None:
            return
        if isinstance(guard, TakesMany):
            found: Iterable[TextFinding] = guard.push_many(values)
        else:
            found = [finding for value in values for finding in guard.push(value)]
        for finding in found:
            self._told(series[0], finding)
