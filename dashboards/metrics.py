"""Prometheus metrics of what guards, engine and server do.

Limits: in one process only (prometheus-client's multiprocess mode knows neither custom collectors nor Info); classic
histograms; time between tokens is measured where the embedded server runs, not on engines that only send events.
Labels come from closed sets or are cut off at `MAX_LABEL_VALUES`; no request id, user or text is ever a label.
"""

from __future__ import annotations

import platform
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from checkengine.guards.events import (
    ActionTaken,
    AuditCoverage,
    AuditJudged,
    BrakePulled,
    BundleWritten,
    Event,
    FindingRaised,
    GuardDisabled,
    SequenceEnded,
    StepMeasured,
)

MAX_LABEL_VALUES = 64
OTHER = "other"
INCIDENTS_REMEMBERED = 4096

TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 120)
"""Those of gen_ai.server.time_to_first_token, stretched for queues; 0.5 s is an edge, because it is a common SLO."""
INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 10)
"""gen_ai.server.time_per_output_token begins at 10 ms and hides fast models; 30 ms is an edge for the same reason."""
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 10)


class LabelCap:
    """Lets the first `limit` different values of a label pass; later ones become `other`."""

    def __init__(self, limit: int = MAX_LABEL_VALUES) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit:
            return OTHER
        self._seen.add(value)
        return value


class Metrics:
    """Counts events (`handle`), and requests as the embedded server's observer (`produced`, `ended`).

    `handle` takes about ten microseconds and is meant for a queue of its own (`EventBus.subscribe`).
    """

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        self.registry = registry
        self._kind, self._guard, self._reason, self._stratum = (LabelCap() for _ in range(4))
        self._audit_cpu = 0.0
        self._incident_ids: OrderedDict[str, None] = OrderedDict()
        self._make_counters(registry)
        self._make_histograms(registry)
        Info("checkengine_build", "Version of checkengine and Python.", registry=registry).info(
            {"version": version, "python": platform.python_version()}
        )
        self._handlers: dict[type, Callable[..., None]] = {
            FindingRaised: self._finding,
            ActionTaken: self._action,
            GuardDisabled: lambda event: self.guards_disabled.labels(self._guard(event.guard)).inc(),
            BrakePulled: lambda event: self.brakes.labels(self._guard(event.guard)).inc(),
            BundleWritten: lambda event: self.bundles.inc(),
            AuditJudged: lambda event: self.audits.labels(self._reason(event.verdict)).inc(),
            AuditCoverage: self._audit_coverage,
            SequenceEnded: self._sequence,
            StepMeasured: self._step,
        }

    def _make_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"checkengine_{name}", help_text, labels, registry=registry)

        self.findings = counter(
            "findings_total",
            "Findings of guards; primary=false is evidence on a known cause.",
            "kind",
            "guard",
            "primary",
        )
        self.incidents = counter("incidents_total", "Incidents opened.", "kind")
        self.actions = counter("actions_total", "Actions taken on sequences.", "action", "kind")
        self.guards_disabled = counter("guards_disabled_total", "Times a guard was switched off.", "guard")
        self.brakes = counter("brakes_pulled_total", "Times a guard stopped too many sequences and fell back.", "guard")
        self.bundles = counter("bundles_written_total", "Captures written.")
        self.audits = counter("audits_total", "Sampled steps judged off the serving path.", "verdict")
        self.audit_cpu = counter("audit_cpu_seconds_total", "CPU time in captures and judging of audits.")
        self.audit_rows = Gauge(
            "checkengine_audit_rows",
            "Rows of steps since the start, by stratum: seen, audited, convicted.",
            ("stratum", "state"),
            registry=registry,
        )
        self.sequences = counter("sequences_total", "Sequences that ended.", "finish_reason")
        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of sequences that ended.")
        self.output_tokens = counter("output_tokens_total", "Output tokens of sequences that ended.")
        self.steps = counter("steps_total", "Engine steps.")
        self.step_tokens = counter("step_tokens_total", "Tokens computed in steps, prefill and decode.")
        self.guard_cpu = counter("guard_cpu_seconds_total", "CPU time in guards and recorder on the step's thread.")
        self.request_errors = counter("request_errors_total", "Requests that ended with an error.", "error")

    def _make_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, help_text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"checkengine_{name}", help_text, buckets=tuple(buckets), registry=registry)

        self.ttft = histogram("time_to_first_token_seconds", "From arrival to the first output token.", TTFT_BUCKETS)
        self.inter_token = histogram("inter_token_seconds", "Between output tokens of a sequence.", INTER_TOKEN_BUCKETS)
        self.step_seconds = histogram("step_seconds", "Wall time of an engine step.", STEP_BUCKETS)

    def handle(self, event: Event) -> None:
        """Event of the bus; kinds that nobody counts are no error."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def produced(self, sequence: str, tokens: int, seconds: float, first: bool) -> None:
        """Tokens of one step of one sequence, as the embedded server's observer is told."""
        if not first:
            # Tokens of one step arrive together: the client waited once, for the first of them.
            self.inter_token.observe(seconds)

    def request_ended(self, error: str | None) -> None:
        if error is not None:
            self.request_errors.labels(self._reason(error)).inc()

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Body and content type: OpenMetrics where the Accept header asks for it, text for one that makes no sense."""
        try:
            encoder, content_type = choose_encoder(accept)
        except (TypeError, ValueError, LookupError):
            encoder, content_type = choose_encoder("")
        return encoder(self.registry), content_type

    def _finding(self, event: FindingRaised) -> None:
        finding = event.finding
        kind = self._kind(finding.kind)
        self.findings.labels(kind, self._guard(finding.guard), str(event.primary).lower()).inc()
        if event.primary and event.incident and event.incident not in self._incident_ids:
            self.incidents.labels(kind).inc()
            self._incident_ids[event.incident] = None
            if len(self._incident_ids) > INCIDENTS_REMEMBERED:
                self._incident_ids.popitem(last=False)

    def _action(self, event: ActionTaken) -> None:
        self.actions.labels(event.action.kind.value, self._kind(event.action.finding)).inc()

    def _audit_coverage(self, event: AuditCoverage) -> None:
        self.audit_cpu.inc(max(0.0, event.cpu_seconds - self._audit_cpu))
        self._audit_cpu = event.cpu_seconds
        for stratum, counts in event.strata.items():
            for state, count in zip(("seen", "audited", "convicted"), counts, strict=True):
                self.audit_rows.labels(self._stratum(stratum), state).set(count)

    def _sequence(self, event: SequenceEnded) -> None:
        self.sequences.labels(self._reason(event.reason)).inc()
        self.prompt_tokens.inc(event.prompt_tokens)
        self.output_tokens.inc(event.output_tokens)
        if event.output_tokens:
            self.ttft.observe(event.ttft_seconds)

    def _step(self, event: StepMeasured) -> None:
        self.steps.inc()
        self.step_tokens.inc(event.tokens)
        self.guard_cpu.inc(event.guard_cpu_seconds)
        self.step_seconds.observe(event.seconds)


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
    ) -> None:
        self._engine, self._recorder = engine, recorder_dropped
        self._listeners, self._guards = listeners_dropped, guards_active
        self._captures, self._capture_levels = captures, capture_levels
        self._failures = 0

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read an engine that is not ready."""
        return ()

    def collect(self) -> Iterable[Metric]:
        for part in (self._of_engine, self._of_recorder, self._of_listeners, self._of_guards, self._of_captures):
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
        ):
            if numbers is not None:
                family = CounterMetricFamily(f"checkengine_{name}", help_text, labels=[label])
                for value, count in numbers().items():
                    family.add_metric([value], count)
                yield family
