"""Prometheus metrics of the proxy's requests. Findings, incidents and actions are counted by `Metrics`, from events.

Limits: in one process only; classic histograms; times between chunks are those at which the proxy reads them, and
servers may send several tokens in one chunk. Names of upstreams come from the configuration; no other label is open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from checkengine.dashboards.metrics import INTER_TOKEN_BUCKETS, TTFT_BUCKETS, LabelCap
from checkengine.dashboards.request_end import RequestEnd

REQUEST_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
LONGEST_REASON = 64
"""Characters of a finish reason: servers write what they like."""


class End(RequestEnd, Protocol):
    """As the proxy tells it when a request is over."""

    @property
    def upstream(self) -> str: ...
    @property
    def status(self) -> int | None: ...
    @property
    def total_seconds(self) -> float: ...


class ChunkWaits(Collector):
    """A histogram that a list of integers holds: it is counted for every chunk, and a lock would cost more."""

    def __init__(self) -> None:
        self._counts = [0] * (len(INTER_TOKEN_BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(INTER_TOKEN_BUCKETS, seconds)] += 1
        self._sum += seconds

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        edges = [*(str(float(edge)) for edge in INTER_TOKEN_BUCKETS), "+Inf"]
        total, buckets = 0, []
        for edge, count in zip(edges, list(self._counts), strict=True):
            total += count
            buckets.append((edge, float(total)))
        family = HistogramMetricFamily("checkengine_proxy_inter_chunk_seconds", "Between two chunks of one stream.")
        family.add_metric([], buckets, self._sum)
        yield family


class ProxyMetrics:
    """An observer of the proxy (`waited`, `ended`, `unguarded`); called on its event loop."""

    def __init__(self, registry: CollectorRegistry, running: Callable[[], int]) -> None:
        """`running` is asked at each scrape."""

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"checkengine_proxy_{name}", help_text, labels, registry=registry)

        def histogram(name: str, help_text: str, buckets: Iterable[float], *labels: str) -> Histogram:
            edges = tuple(buckets)
            return Histogram(f"checkengine_proxy_{name}", help_text, labels, buckets=edges, registry=registry)

        self._upstream, self._reason, self._error, self._status = LabelCap(), LabelCap(), LabelCap(), LabelCap()
        # Servers choose it: one that made up hundreds would take the place of every other reason.
        self._finish = LabelCap()
        self.requests = counter("requests_total", "Requests that ended.", "upstream", "status")
        self.errors = counter("errors_total", "Requests that did not end as they ought to.", "error")
        self.finished = counter("finish_reasons_total", "Choices that ended, by their finish reason.", "reason")
        self.flagged = counter("flagged_total", "Answers with a finding, by the first one's kind.", "kind")
        self.tokens = counter("tokens_total", "Tokens as servers count them, else chunks.", "type")
        self.unguarded_answers = counter("unguarded_total", "Answers that passed without guards, or partly.", "reason")
        self.upstream_events = counter(
            "upstream_events_total",
            "Upstreams drained, held, returned, released, down, up; alarms.",
            "upstream",
            "event",
        )
        self.seconds = histogram("request_seconds", "From a request's body to the end of its answer.", REQUEST_BUCKETS)
        self.ttft = histogram("time_to_first_chunk_seconds", "From a request's body to its answer's.", TTFT_BUCKETS)
        self._waits = ChunkWaits()
        self.waited = self._waits.add
        registry.register(self._waits)
        registry.register(_Running(running))

    def ended(self, end: End) -> None:
        self.requests.labels(self._upstream(end.upstream), self._status(str(end.status or 0))).inc()
        if end.error is not None:
            self.errors.labels(self._error(end.error)).inc()
        for reason in end.finish_reasons:
            self.finished.labels(self._finish(reason[:LONGEST_REASON])).inc()
        for kind, count in (
            ("prompt", end.prompt_tokens),
            ("output", end.output_tokens),
            ("cached", end.cached_tokens),
        ):
            if count:
                self.tokens.labels(kind).inc(count)
        exemplar = None
        if end.note is not None:
            # From a bar in a panel to the incident behind it.
            exemplar = {"incident": end.note.incident[:64]} if end.note.incident else None
            self.flagged.labels(self._reason(end.note.kind)).inc(1, exemplar)
        self.seconds.observe(end.total_seconds, exemplar)
        if end.ttft_seconds is not None:
            self.ttft.observe(end.ttft_seconds, exemplar)

    def routed(self, upstream: str, event: str) -> None:
        """An upstream left or joined those that serve."""
        self.upstream_events.labels(self._upstream(upstream), self._reason(event)).inc()

    def unguarded(self, reason: str) -> None:
        self.unguarded_answers.labels(self._reason(reason)).inc()


class _Running(Collector):
    def __init__(self, running: Callable[[], int]) -> None:
        self._running = running

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("checkengine_proxy_running", "Requests that run now.", value=self._running())
