"""Numbers that are read when Prometheus asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MOST_SERIES = 64


class EngineNumbers(Protocol):
    """What an engine tells when it is scraped; the embedded engine's `stats` is one."""

    @property
    def waiting(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def quarantined_blocks(self) -> int: ...
    @property
    def prefix_hit_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...


class CollectorNumbers(Protocol):
    """What the collector of spools tells; `Collector.totals` of dashboards/collector is one."""

    @property
    def last_round(self) -> float: ...
    @property
    def records(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def failures(self) -> int: ...


ENGINE_GAUGES = {
    "sequences_waiting": ("waiting", "Sequences that wait for a place."),
    "sequences_running": ("running", "Sequences in the batch."),
    "kv_blocks": ("blocks", "KV blocks in all."),
    "kv_blocks_free": ("free_blocks", "KV blocks free or evictable."),
    "kv_blocks_quarantined": ("quarantined_blocks", "KV blocks that are not handed on until refilled."),
}
ENGINE_COUNTERS = {
    "prefix_hit_tokens_total": ("prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
    "preemptions_total": ("preemptions", "Sequences that lost their KV blocks and were computed again."),
}


class LiveNumbers(Collector):
    """Numbers that are read when Prometheus asks, in the scrape's thread: callbacks must be safe to call from there.

    A callback that raises leaves its metrics out of the scrape; `checkengine_scrape_failures_total` counts them.
    """

    def __init__(
        self,
        *,
        engine: Callable[[], EngineNumbers] | None = None,
        recorder_dropped: Callable[[], int] | None = None,
        listeners_dropped: Callable[[], Mapping[str, int]] | None = None,
        guards_active: Callable[[], Mapping[str, bool]] | None = None,
        captures: Callable[[], Mapping[str, int]] | None = None,
        capture_levels: Callable[[], Mapping[str, int]] | None = None,
        reproducers: Callable[[], Mapping[str, int]] | None = None,
        guard_seconds: Callable[[], Mapping[str, float]] | None = None,
        guards_braked: Callable[[], Mapping[str, bool]] | None = None,
        would_have_stopped: Callable[[], Mapping[str, int]] | None = None,
        incidents_open: Callable[[], int] | None = None,
        spool_dropped: Callable[[], int] | None = None,
        drift: Callable[[], Mapping[str, tuple[float, float]]] | None = None,
        collector: Callable[[], CollectorNumbers] | None = None,
        canaries: Callable[[], Mapping[str, int]] | None = None,
        upstreams: Callable[[], Mapping[str, int]] | None = None,
        notifications: Callable[[], Mapping[tuple[str, str], int]] | None = None,
    ) -> None:
        """`drift` gives, by series, the log of its e-value and the threshold at which it alarms; `canaries` counts by
        outcome (passed, failed), `upstreams` by standing, `notifications` by channel (otlp, webhook) and outcome."""
        self._engine, self._recorder = engine, recorder_dropped
        self._listeners, self._guards = listeners_dropped, guards_active
        self._captures, self._capture_levels, self._reproducers = captures, capture_levels, reproducers
        self._by_guard = (
            (guard_seconds, CounterMetricFamily, "guard_seconds", "CPU time of a guard."),
            (guards_braked, GaugeMetricFamily, "guard_braked", "1 while a guard's brake is pulled: it only observes."),
            (
                would_have_stopped,
                CounterMetricFamily,
                "would_have_stopped",
                "Sequences that a guard would have stopped, had it been allowed to.",
            ),
        )
        self._single = (
            (incidents_open, GaugeMetricFamily, "incidents_open", "Incidents with a finding a short while ago."),
            (spool_dropped, CounterMetricFamily, "spool_dropped", "Records that the spool could not keep."),
        )
        self._drift, self._collector, self._notifications = drift, collector, notifications
        self._by_word = (
            (canaries, CounterMetricFamily, "canaries", "outcome", "Canary requests to upstreams."),
            (
                upstreams,
                GaugeMetricFamily,
                "upstreams",
                "standing",
                "Upstreams of the proxy, by what is done with them.",
            ),
        )
        self._failures = 0

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read an engine that is not ready."""
        return ()

    def collect(self) -> Iterable[Metric]:
        parts = (self._of_engine, self._of_recorder, self._of_listeners, self._of_guards, self._of_captures)
        for part in (
            *parts,
            self._of_each_guard,
            self._of_single_numbers,
            self._of_drift,
            self._of_words,
            self._of_collector,
            self._of_notifications,
        ):
            try:
                yield from list(part())
            except Exception:
                self._failures += 1
        failures = "Reads of live numbers that raised."
        yield CounterMetricFamily("checkengine_scrape_failures", failures, value=self._failures)

    def _of_engine(self) -> Iterable[Metric]:
        if self._engine is None:
            return
        numbers = self._engine()
        for name, (attribute, help_text) in ENGINE_GAUGES.items():
            yield GaugeMetricFamily(f"checkengine_{name}", help_text, value=getattr(numbers, attribute))
        for name, (attribute, help_text) in ENGINE_COUNTERS.items():
            yield CounterMetricFamily(f"checkengine_{name}", help_text, value=getattr(numbers, attribute))

    def _of_recorder(self) -> Iterable[Metric]:
        if self._recorder is not None:
            help_text = "Steps that the recorder could not keep."
            yield CounterMetricFamily("checkengine_recorder_dropped", help_text, value=self._recorder())

    def _of_listeners(self) -> Iterable[Metric]:
        if self._listeners is not None:
            family = CounterMetricFamily(
                "checkengine_events_dropped", "Events that a slow or failed listener missed.", labels=["listener"]
            )
            for name, count in self._listeners().items():
                family.add_metric([name], count)
            yield family

    def _of_guards(self) -> Iterable[Metric]:
        if self._guards is not None:
            family = GaugeMetricFamily("checkengine_guard_active", "1 while a guard looks at steps.", labels=["guard"])
            for name, active in self._guards().items():
                family.add_metric([name], float(active))
            yield family

    def _of_captures(self) -> Iterable[Metric]:
        for numbers, name, label, help_text in (
            (self._captures, "captures", "outcome", "Triggers of captures, by what became of them; alarm on failed."),
            (self._capture_levels, "captures_by_level", "level", "Captures written, by how much memory they hold."),
            (self._reproducers, "reproducers", "outcome", "Content-free reproducers, by what became of them."),
        ):
            if numbers is not None:
                family = CounterMetricFamily(f"checkengine_{name}", help_text, labels=[label])
                for value, count in numbers().items():
                    family.add_metric([value], count)
                yield family

    def _of_each_guard(self) -> Iterable[Metric]:
        for numbers, kind, name, help_text in self._by_guard:
            if numbers is not None:
                family = kind(f"checkengine_{name}", help_text, labels=["guard"])
                for guard, value in numbers().items():
                    family.add_metric([guard], float(value))
                yield family

    def _of_single_numbers(self) -> Iterable[Metric]:
        for number, kind, name, help_text in self._single:
            if number is not None:
                yield kind(f"checkengine_{name}", help_text, value=number())

    def _of_drift(self) -> Iterable[Metric]:
        if self._drift is None:
            return
        numbers = list(self._drift().items())[:MOST_SERIES]
        for index, name, help_text in (
            (0, "drift_log_evidence", "Log of the e-value against a series being as it was."),
            (1, "drift_log_threshold", "Log of the e-value at which a series alarms."),
        ):
            family = GaugeMetricFamily(f"checkengine_{name}", help_text, labels=["series"])
            for series, values in numbers:
                family.add_metric([series], values[index])
            yield family

    def _of_words(self) -> Iterable[Metric]:
        for numbers, kind, name, label, help_text in self._by_word:
            if numbers is not None:
                family = kind(f"checkengine_{name}", help_text, labels=[label])
                for word, count in numbers().items():
                    family.add_metric([word], float(count))
                yield family

    def _of_collector(self) -> Iterable[Metric]:
        if self._collector is None:
            return
        numbers = self._collector()
        for kind, name, value, help_text in (
            (GaugeMetricFamily, "last_round_timestamp_seconds", numbers.last_round, "When spools were last collected."),
            (CounterMetricFamily, "records", numbers.records, "Records taken from spools into the catalog."),
            (CounterMetricFamily, "rejected", numbers.rejected, "Records that fit no row, or were damaged."),
            (CounterMetricFamily, "failures", numbers.failures, "Rounds in which the catalog could not be written."),
        ):
            yield kind(f"checkengine_collector_{name}", help_text, value=value)

    def _of_notifications(self) -> Iterable[Metric]:
        if self._notifications is not None:
            labels = ["channel", "outcome"]
            family = CounterMetricFamily("checkengine_notifications", "Batches of spans, and webhooks.", labels=labels)
            for words, count in self._notifications().items():
                family.add_metric(list(words), count)
            yield family
