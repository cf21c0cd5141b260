"""Service level objectives, and alerts on how fast their error budgets burn.

An alert needs two windows, so that it comes quickly and ends quickly, and a few bad events, so that one in a quiet
night pages nobody (Google's SRE workbook, chapter 5, for a month's budget).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checkengine.dashboards.rules.rule import Alert, Recording, Severity

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


@dataclass(frozen=True, slots=True)
class Burn:
    """The budget of 30 days would be spent `factor` times too fast."""

    long: str
    short: str
    factor: float
    severity: Severity
    wait: str
    spent: str
    """Of the month's budget, when the long window has been bad throughout."""


BURNS = (
    Burn("1h", "5m", 14.4, "critical", "2m", "2%"),
    Burn("6h", "30m", 6, "critical", "15m", "5%"),
    Burn("1d", "2h", 3, "warning", "1h", "10%"),
    Burn("3d", "6h", 1, "warning", "3h", "10%"),
)


@dataclass(frozen=True, slots=True)
class Objective:
    name: str
    """In snake case, for the recording rules."""
    alert: str
    goal: float
    """Share of events that shall be good."""
    bad: str
    """Metric of bad events a second over the window WINDOW, summed by job."""
    all: str
    least_bad: int
    """Bad events in the long window below which nobody is told."""
    summary: str
    meaning: str
    page: str

    def ratio(self, window: str) -> str:
        return f"checkengine:{self.name}_errors:ratio_rate{window}"

    def recordings(self) -> Iterator[Recording]:
        for window in WINDOWS:
            bad, every = (text.replace("WINDOW", window) for text in (self.bad, self.all))
            yield Recording(self.ratio(window), f"{bad}\n/\n{every}")

    def alerts(self) -> Iterator[Alert]:
        for burn in BURNS:
            threshold = f"({burn.factor:g} * {1 - self.goal:g})"
            seconds = seconds_of(burn.long)
            expr = (
                f"{self.ratio(burn.long)} > {threshold}\nand\n{self.ratio(burn.short)} > {threshold}\nand\n"
                f"{self.bad.replace('WINDOW', burn.long)} * {seconds} >= {self.least_bad}"
            )
            description = (
                f"{self.meaning} Over the last {burn.long} and {burn.short} that is so often that {burn.spent} of a "
                f"month's error budget (goal: {100 * self.goal:g}%) are spent in {burn.long}."
            )
            labels = {"long_window": burn.long, "short_window": burn.short}
            yield Alert(self.alert, expr, burn.severity, self.summary, description, self.page, burn.wait, labels)


def seconds_of(window: str) -> int:
    return int(window[:-1]) * {"m": 60, "h": 3600, "d": 86400}[window[-1]]


def share_above(histogram: str, edge: str) -> tuple[str, str]:
    """Observations a second above an edge of the histogram, and all of them."""
    every = f"sum by (job) (rate(checkengine_{histogram}_count[WINDOW]))"
    good = f'sum by (job) (rate(checkengine_{histogram}_bucket{{le="{edge}"}}[WINDOW]))'
    return f"({every} - {good})", every


SLOW_FIRST, FIRST = share_above("time_to_first_token_seconds", "0.5")
SLOW_NEXT, NEXT = share_above("inter_token_seconds", "0.03")

OBJECTIVES = (
    Objective(
        "clean_generation",
        "CheckengineCleanGenerationBurn",
        0.999,
        'sum by (job) (rate(checkengine_generations_total{outcome="incident"}[WINDOW]))',
        "sum by (job) (rate(checkengine_generations_total[WINDOW]))",
        3,
        "Too many generations have a confirmed fault.",
        "Sequences of {{ $labels.job }} end with a finding of severity error.",
        "/incidents?status=open",
    ),
    Objective(
        "first_token",
        "CheckengineFirstTokenBurn",
        0.99,
        SLOW_FIRST,
        FIRST,
        10,
        "Too many first tokens are slow.",
        "Requests to {{ $labels.job }} wait longer than 500 ms for their first token.",
        "/",
    ),
    Objective(
        "inter_token",
        "CheckengineInterTokenBurn",
        0.99,
        SLOW_NEXT,
        NEXT,
        100,
        "Too many tokens are slow.",
        "Clients of {{ $labels.job }} wait longer than 30 ms for the next token.",
        "/",
    ),
)
