"""Measurements, series by series, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from checkengine.guards.settings import GuardsSettings
from checkengine.guards.text import SeriesGuard, TextFinding
from checkengine.scanning.finding_lines import Found
from checkengine.scanning.reader import Failure, failure
from checkengine.scanning.records import Measurement
from checkengine.scanning.registry import series_makers

MOST_SERIES = 1 << 16
"""Followed at once; measurements of further ones are passed over and told as a failure."""


class SeriesReader:
    def __init__(self, names: Sequence[str], settings: GuardsSettings) -> None:
        self._makers = series_makers(names, settings)
        self._series: dict[str, dict[str, SeriesGuard]] = {}

    @property
    def reads(self) -> bool:
        """Some chosen guard reads measurements."""
        return bool(self._makers)

    def read(self, measurement: Measurement) -> list[Found | Failure]:
        told: list[Found | Failure] = []
        guards = self._series.get(measurement.series)
        if guards is None:
            if len(self._series) >= MOST_SERIES:
                return [Failure("drift", f"follows {MOST_SERIES:,} series and no more")]
            guards = self._series[measurement.series] = {}
            for name, make in self._makers.items():
                try:
                    guards[name] = make(measurement.series)
                except Exception as error:
                    told.append(failure(name, error))
        for name, guard in list(guards.items()):
            told += self._ask(measurement.series, name, partial(guard.push, measurement.value, measurement.t))
        return told

    def end(self) -> list[Found | Failure]:
        """What can be said only when a series is over."""
        told: list[Found | Failure] = []
        for series, guards in self._series.items():
            for name, guard in list(guards.items()):
                told += self._ask(series, name, guard.end)
        return told

    def _ask(self, series: str, name: str, call: Callable[[], Iterable[TextFinding]]) -> list[Found | Failure]:
        """A guard that raises has lost the thread of its series: it reads no more of it."""
        try:
            return [
                Found(series, finding.kind, finding.severity, name, finding.at, finding.evidence, series=True)
                for finding in call()
            ]
        except Exception as error:
            del self._series[series][name]
            return [failure(name, error)]
