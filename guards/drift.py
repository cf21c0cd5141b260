"""Series of measurements that change: `drift.<series>`.

A change of an output series (completion length, entropy, finish reasons, acceptance, TTFT…) is a WARNING; a change of
an input series is INFO: users may ask what they like. An output is judged given its input where one comes with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.drift.bands import Bands
from checkengine.detectors.drift.bank import CategoryBank, DriftAlarm, DriftBank
from checkengine.detectors.drift.categories import MOST_CATEGORIES
from checkengine.detectors.drift.summary import Summary
from checkengine.guards.finding import Severity
from checkengine.guards.settings import DriftSettings
from checkengine.guards.text import TextFinding

if TYPE_CHECKING:
    from checkengine.detectors.drift.explain import DriftExplanation

Value = float | str
PROBABILITIES = (0.5, 0.9)


class SeriesDriftGuard:
    """One series. Numbers are judged by their ranks, names and booleans by their shares; the first value decides."""

    name: str = "drift"
    version: int = 1

    def __init__(self, series: str, settings: DriftSettings) -> None:
        self._series, self._settings = series, settings
        self._reader: _Numbers | _Given | _Names | None = None
        self._pushed = 0

    def push(self, value: Value, t: float | None = None, given: float | None = None) -> Iterable[TextFinding]:
        """`given`: the input that came with this output (a prompt's length); then it must come with every value."""
        return self.push_many([value], None if t is None else [t], None if given is None else [given])

    def push_many(
        self, values: Sequence[Value], times: Sequence[float] | None = None, given: Sequence[float] | None = None
    ) -> list[TextFinding]:
        """As one `push` after the other, in one call of the compiled code."""
        if not len(values):
            return []
        if self._reader is None:
            self._reader = self._make(values[0], given is not None)
        alarms = self._reader.read(values, given)
        start, self._pushed = self._pushed, self._pushed + len(values)
        return [self._finding(self._reader, alarm, start, times) for alarm in alarms]

    def end(self) -> Iterable[TextFinding]:
        return ()

    @property
    def state_bytes(self) -> int:
        return self._reader.state_bytes if self._reader else 0

    @property
    def log_evidence(self) -> float | None:
        """Nats for a change since the series began or last gave an alarm; None before its first value."""
        return None if self._reader is None else float(self._reader.bank.log_evidence[0])

    @property
    def log_threshold(self) -> float:
        """Nats at which it gives an alarm."""
        return math.log(_arl(self._settings))

    def _make(self, value: Value, given: bool) -> _Numbers | _Given | _Names:
        seed = sum(self._series.encode("utf-8", "surrogatepass"))
        if isinstance(value, str | bool):
            return _Names(self._settings, seed)
        return _Given(self._settings, seed) if given else _Numbers(self._settings, seed)

    def _finding(
        self, reader: _Numbers | _Given | _Names, alarm: DriftAlarm, start: int, times: Sequence[float] | None
    ) -> TextFinding:
        index = start + alarm.index
        at: dict[str, float | int] = {"t": index if times is None else float(times[alarm.index])}
        severity = Severity.INFO if self._series in self._settings.inputs else Severity.WARNING
        evidence = {
            "change": alarm.bet.change,
            "size": alarm.bet.size,
            "log_evidence": round(alarm.log_evidence, 2),
            "values_before": alarm.began,
            "values_since": alarm.seen - alarm.began,
            "dependent": alarm.dependent,
        }
        found = evidence | reader.describe(alarm)
        return TextFinding(f"drift.{self._series}", self._series, severity, self.name, at, self.version, found)


class DriftGuard:
    """All series by name; a name beyond `series` of the settings is not followed (`unfollowed` counts its values)."""

    name: str = "drift"
    version: int = 1

    def __init__(self, settings: DriftSettings) -> None:
        self._settings = settings
        self._series: dict[str, SeriesDriftGuard] = {}
        self.unfollowed = 0

    @property
    def state_bytes(self) -> int:
        """Of the largest series; at most 4 KiB, whatever the traffic."""
        return max((guard.state_bytes for guard in self._series.values()), default=0)

    def evidence(self) -> dict[str, tuple[float, float]]:
        """By series, `log_evidence` (-inf before its first value) and `log_threshold`; from any thread."""
        told = {name: (guard.log_evidence, guard.log_threshold) for name, guard in list(self._series.items())}
        return {name: (-math.inf if now is None else now, least) for name, (now, least) in told.items()}

    def update(
        self,
        series: str,
        t: float | None,
        value: Value | Sequence[Value],
        given: float | Sequence[float] | None = None,
    ) -> list[TextFinding]:
        """One value, or several of the same moment; `given`: their input or inputs, where outputs depend on one."""
        values: Sequence[Value] = [value] if isinstance(value, str | float | int) else value
        inputs = [given] if isinstance(given, float | int) else given
        guard = self._series.get(series)
        if guard is None:
            if len(self._series) >= self._settings.series:
                self.unfollowed += len(values)
                return []
            guard = self._series[series] = SeriesDriftGuard(series, self._settings)
        return guard.push_many(values, None if t is None else [t] * len(values), inputs)


def explain_change(
    before: Sequence[Mapping[str, Value]], after: Sequence[Mapping[str, Value]], slices: Sequence[str]
) -> DriftExplanation | None:
    """Which features and which slices of the traffic moved; None where nothing did, or too little is known. `after`
    is what came since the alarm: what set it off was chosen by its values."""
    from checkengine.detectors.drift.explain import explain_drift

    return explain_drift(before, after, slices)


def _arl(settings: DriftSettings) -> float:
    return settings.requests_per_false_alarm * settings.series


class _Numbers:
    def __init__(self, settings: DriftSettings, seed: int) -> None:
        self.bank = DriftBank(
            1, baseline=settings.baseline, arl=_arl(settings), tolerance=settings.tolerance, seed=seed
        )
        self._summary = Summary()

    @property
    def state_bytes(self) -> int:
        return self.bank.state_bytes + self._summary.state_bytes

    def read(self, values: Sequence[Value], given: Sequence[float] | None) -> list[DriftAlarm]:
        taken = _numbers(values)
        self._summary.add(taken)
        return self.bank.update(0, taken)

    def describe(self, alarm: DriftAlarm) -> dict[str, float]:
        return _described(self._summary)


class _Given:
    """Judged within bands of the input, which the first quarter of the baseline sets."""

    def __init__(self, settings: DriftSettings, seed: int) -> None:
        learn_from = settings.baseline // 4
        self._bands = Bands(settings.bands, learn_from)
        self.bank = DriftBank(
            1,
            strata=settings.bands,
            baseline=settings.baseline - learn_from,
            arl=_arl(settings),
            tolerance=settings.given_tolerance,
            seed=seed,
        )
        self._summary = Summary(60)

    @property
    def state_bytes(self) -> int:
        return self.bank.state_bytes + self._summary.state_bytes + self._bands.edges.nbytes

    def read(self, values: Sequence[Value], given: Sequence[float] | None) -> list[DriftAlarm]:
        """A value without its input is left out."""
        if given is None or len(given) != len(values):
            return []
        taken, inputs, learnt = _numbers(values), np.asarray(given, np.float64), 0
        while learnt < len(inputs) and not self._bands.ready:
            self._bands.learn(float(inputs[learnt]))
            learnt += 1
        self._summary.add(taken)
        if learnt == len(inputs):
            return []
        alarms = self.bank.update(0, taken[learnt:], self._bands.of(inputs[learnt:]))
        return [_later(alarm, learnt) for alarm in alarms]

    def describe(self, alarm: DriftAlarm) -> dict[str, float]:
        return _described(self._summary)


class _Names:
    """Names get numbers in the order in which they come; those after the eleventh are one category."""

    def __init__(self, settings: DriftSettings, seed: int) -> None:
        self.bank = CategoryBank(1, baseline=settings.baseline, arl=_arl(settings), seed=seed)
        self._known: dict[Value, int] = {}

    @property
    def state_bytes(self) -> int:
        return self.bank.state_bytes + sum(8 + len(str(name)) for name in self._known)

    def read(self, values: Sequence[Value], given: Sequence[float] | None) -> list[DriftAlarm]:
        return self.bank.update(0, [self._number(value) for value in values])

    def describe(self, alarm: DriftAlarm) -> dict[str, float]:
        return {"category": alarm.bet.category, "categories": len(self._known)}

    def _number(self, value: Value) -> int:
        """A number among names is skipped."""
        if not isinstance(value, str | bool):
            return -1
        if value not in self._known and len(self._known) < MOST_CATEGORIES - 1:
            self._known[value] = len(self._known)
        return self._known.get(value, MOST_CATEGORIES - 1)


def _numbers(values: Sequence[Value]) -> NDArray[np.float64]:
    """A name among numbers is NaN, which is skipped."""
    return np.array([np.nan if isinstance(value, str | bool) else value for value in values], np.float64)


def _later(alarm: DriftAlarm, by: int) -> DriftAlarm:
    return DriftAlarm(
        alarm.index + by, alarm.series, alarm.bet, alarm.began, alarm.seen, alarm.log_evidence, alarm.dependent
    )


def _described(summary: Summary) -> dict[str, float]:
    before, recent = summary.quantiles(PROBABILITIES), summary.recent_quantiles(PROBABILITIES)
    names = ("median", "p90")
    told = {f"{name}_before": round(value, 6) for name, value in zip(names, before, strict=True)}
    return told | {f"{name}_recent": round(value, 6) for name, value in zip(names, recent, strict=True)}
