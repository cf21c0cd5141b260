"""Prometheus metrics of what guards, engine and server do.

Labels come from closed sets or are cut off at `MAX_LABEL_VALUES`; no request id, user or text is ever a label.
Exemplars are written in the OpenMetrics format only, and not in prometheus-client's multiprocess mode.
"""

from __future__ import annotations

import os
import platform
from collections import OrderedDict
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from checkengine.dashboards.limits import NO_LIMIT, PhysicalLimit
from checkengine.dashboards.live_numbers import EngineNumbers, LiveNumbers
from checkengine.guards.action import ActionKind
from checkengine.guards.events import (
    ActionTaken,
    AuditCoverage,
    AuditJudged,
    BrakePulled,
    BundleWritten,
    Event,
    FindingRaised,
    GuardDisabled,
    LoopsMeasured,
    SequenceEnded,
    StepMeasured,
)
from checkengine.guards.finding import CAUSE_ORDER, Severity

__all__ = ["MAX_LABEL_VALUES", "OTHER", "EngineNumbers", "LabelCap", "LiveNumbers", "Metrics"]

MAX_LABEL_VALUES = 64
OTHER = "other"
REMEMBERED = 4096
"""Incidents, and sequences with a finding, whose names are kept to count each once."""
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 120)
"""Those of gen_ai.server.time_to_first_token, stretched for queues; 0.5 s is an edge, because it is a common SLO."""
INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 10)
"""gen_ai.server.time_per_output_token begins at 10 ms and hides fast models; 30 ms is an edge for the same reason."""
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 10)
LOOP_BUCKETS = tuple(2**power for power in range(1, 18))
RATIO_BUCKETS = (0.5, 0.8, 0.9, 0.95, 0.99, 1, 1.01, 1.05, 1.1, 1.2, 1.5, 2, 10)
"""Above 1 the state still grows when the loops end."""
MOST_RATIO = 1000.0
"""Of a state that overflowed: an infinite sum would say nothing of the others."""
OUTCOMES = ("clean", "incident")
ERRORS = ("cancelled", "engine")
KINDS = (*CAUSE_ORDER, "drift.replica", "drift.device", "drift.driver", "drift.kernel")
"""Of incidents that can be named before they come."""


class LabelCap:
    """Lets `known` values and the first `limit` different others pass; later ones become `other`."""

    def __init__(self, limit: int = MAX_LABEL_VALUES, known: Iterable[str] = ()) -> None:
        self._limit = limit
        self._known = frozenset(known)
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known or value in self._seen:
            return value
        if len(self._seen) >= self._limit:
            return OTHER
        self._seen.add(value)
        return value


class Recent:
    """The last names, as many as `REMEMBERED`."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> bool:
        """False where it was there."""
        if name in self._names:
            return False
        self._names[name] = None
        if len(self._names) > REMEMBERED:
            self._names.popitem(last=False)
        return True

    def take(self, name: str) -> bool:
        """Forget it; False where it was not there."""
        return self._names.pop(name, self) is None

    def __len__(self) -> int:
        return len(self._names)


class Metrics:
    """Counts events (`handle`), and requests as the embedded server's observer (`produced`, `ended`).

    `handle` takes about ten microseconds and is meant for a queue of its own (`EventBus.subscribe`).
    In multiprocess mode (PROMETHEUS_MULTIPROC_DIR is set, as vLLM does) `exposition` answers for all processes that
    share the folder; `live` collectors, which only know their own process, are added to that.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        version: str,
        *,
        trace_of: Callable[[str], str] | None = None,
        limit: PhysicalLimit = NO_LIMIT,
    ) -> None:
        """`trace_of` gives the trace id of a sequence, or nothing; `limit`: what the device could do at best."""
        self.registry = registry
        self._guard, self._reason, self._stratum = LabelCap(), LabelCap(), LabelCap()
        self._error = LabelCap(known=ERRORS)
        self._kind = LabelCap(known=KINDS)
        self._trace_of = trace_of or (lambda sequence: "")
        self._limit = limit
        self._audit_cpu = 0.0
        self._incident_ids, self._captured, self._faulty, self._stopped = Recent(), Recent(), Recent(), Recent()
        self._live: list[Collector] = []
        self._make_counters(registry)
        self._make_step_counters(registry)
        self._make_histograms(registry)
        self._make_known(version)
        self._handlers: dict[type, Callable[..., None]] = {
            FindingRaised: self._finding,
            ActionTaken: self._action,
            GuardDisabled: lambda event: self.guards_disabled.labels(self._guard(event.guard)).inc(),
            BrakePulled: lambda event: self.brakes.labels(self._guard(event.guard)).inc(),
            BundleWritten: self._bundle,
            AuditJudged: lambda event: self.audits.labels(self._reason(event.verdict)).inc(),
            AuditCoverage: self._audit_coverage,
            SequenceEnded: self._sequence,
            StepMeasured: self._step,
            LoopsMeasured: self._looped,
        }

    def _make_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"checkengine_{name}", help_text, labels, registry=registry)

        self.findings = counter(
            "findings_total",
            "Findings of guards; primary=false is evidence on a known cause.",
            *("kind", "guard", "severity", "primary"),
        )
        self.incidents = counter("incidents_total", "Incidents opened.", "kind")
        self.captured = counter("incidents_captured_total", "Incidents of which a capture was written.")
        self.generations = counter(
            "generations_total", "Sequences that ended; outcome=incident had a finding of severity error.", "outcome"
        )
        self.actions = counter("actions_total", "Actions taken on sequences.", "action", "kind")
        self.tokens_saved = counter(
            "tokens_saved_total", "Output tokens that stopped sequences could still have asked for, at most."
        )
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
            multiprocess_mode="livesum",
        )
        self.sequences = counter("sequences_total", "Sequences that ended.", "finish_reason")
        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of sequences that ended.")
        self.output_tokens = counter("output_tokens_total", "Output tokens of sequences that ended.")
        self.request_errors = counter("request_errors_total", "Requests that ended with an error.", "error")

    def _make_step_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"checkengine_{name}", help_text, labels, registry=registry)

        self.steps = counter("steps_total", "Engine steps.")
        self.step_tokens = counter("step_tokens_total", "Tokens computed in steps, prefill and decode.")
        self.guard_cpu = counter("guard_cpu_seconds_total", "CPU time in guards and recorder on the step's thread.")
        self.speculated = counter(
            "speculative_tokens_total", "Draft tokens that were verified (drafted), and of those accepted.", "state"
        )
        self.decode_bytes = counter("decode_bytes_total", "Weights and KV that steps of decode only had to read.")
        self.decode_seconds = counter("decode_seconds_total", "Time in steps of decode only.")
        self.prefill_flops = counter("prefill_flops_total", "Floating-point operations of steps with a prefill.")
        self.prefill_seconds = counter("prefill_seconds_total", "Time in steps with a prefill.")

    def _make_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, help_text: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(f"checkengine_{name}", help_text, labels, buckets=tuple(buckets), registry=registry)

        self.ttft = histogram(
            "time_to_first_token_seconds",
            "From arrival to the first output token; prefix=warm found part of its prompt in the prefix cache.",
            TTFT_BUCKETS,
            "prefix",
        )
        self.inter_token = histogram("inter_token_seconds", "Between output tokens of a sequence.", INTER_TOKEN_BUCKETS)
        self.step_seconds = histogram("step_seconds", "Wall time of an engine step.", STEP_BUCKETS)
        self.loops = histogram("loops_per_request", "Loops of a looped model's block, all passes.", LOOP_BUCKETS)
        self.norm_ratio = histogram(
            "loop_norm_ratio",
            "Largest ratio of a request's state norm after the last loop of a pass to that before it.",
            RATIO_BUCKETS,
        )

    def _make_known(self, version: str) -> None:
        """Zeros of closed sets, so that the first event is an increase; and what never changes."""
        for kind in KINDS:
            self.incidents.labels(kind)
        for outcome in OUTCOMES:
            self.generations.labels(outcome)
        for error in ERRORS:
            self.request_errors.labels(self._error(error))
        for state in ("drafted", "accepted"):
            self.speculated.labels(state)
        for prefix in ("warm", "cold"):
            self.ttft.labels(prefix)
        words = {"version": version, "python": platform.python_version()}
        Info("checkengine_build", "Version of checkengine and Python.", registry=self.registry).info(words)
        for name, help_text, value in (
            (
                "bandwidth_bytes_per_second",
                "Memory bandwidth measured on the device; 0: unknown.",
                self._limit.bandwidth,
            ),
            ("flops_per_second", "Matrix multiplication measured on the device; 0: unknown.", self._limit.flops),
        ):
            gauge = Gauge(f"checkengine_device_{name}", help_text, registry=self.registry, multiprocess_mode="livemax")
            gauge.set(value)

    def add_live(self, collector: Collector) -> None:
        """Numbers that are read when Prometheus asks."""
        self._live.append(collector)
        self.registry.register(collector)

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
            self.request_errors.labels(self._error(error)).inc()

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Body and content type: OpenMetrics where the Accept header asks for it, text for one that makes no sense."""
        try:
            encoder, content_type = choose_encoder(accept)
        except (TypeError, ValueError, LookupError):
            encoder, content_type = choose_encoder("")
        return encoder(self._exposed()), content_type

    def _exposed(self) -> CollectorRegistry:
        folder = os.environ.get(MULTIPROCESS)
        if not folder:
            return self.registry
        together = CollectorRegistry()
        MultiProcessCollector(together, folder)  # type: ignore[no-untyped-call]
        for collector in self._live:
            together.register(collector)
        return together

    def _exemplar(self, sequence: str, **more: str) -> dict[str, str] | None:
        """A way from the number to the trace; a trace id has 32 letters, an exemplar at most 128."""
        trace = self._trace_of(sequence)
        return {"trace_id": trace, **more} if trace else None

    def _finding(self, event: FindingRaised) -> None:
        finding = event.finding
        kind, severity = self._kind(finding.kind), finding.severity.name.lower()
        counter = self.findings.labels(kind, self._guard(finding.guard), severity, str(event.primary).lower())
        counter.inc(exemplar=self._exemplar(finding.sequence))
        if finding.severity >= Severity.ERROR:
            self._faulty.add(finding.sequence)
        if event.primary and event.incident and self._incident_ids.add(event.incident):
            self.incidents.labels(kind).inc()

    def _action(self, event: ActionTaken) -> None:
        self.actions.labels(event.action.kind.value, self._kind(event.action.finding)).inc()
        if event.action.kind is ActionKind.STOP:
            self._stopped.add(event.action.sequence)

    def _bundle(self, event: BundleWritten) -> None:
        self.bundles.inc()
        if event.incident and self._captured.add(event.incident):
            self.captured.inc()

    def _audit_coverage(self, event: AuditCoverage) -> None:
        self.audit_cpu.inc(max(0.0, event.cpu_seconds - self._audit_cpu))
        self._audit_cpu = event.cpu_seconds
        for stratum, counts in event.strata.items():
            for state, count in zip(("seen", "audited", "convicted"), counts, strict=True):
                self.audit_rows.labels(self._stratum(stratum), state).set(count)

    def _sequence(self, event: SequenceEnded) -> None:
        self.sequences.labels(self._reason(event.reason)).inc()
        self.generations.labels("incident" if self._faulty.take(event.sequence) else "clean").inc()
        self.prompt_tokens.inc(event.prompt_tokens)
        self.output_tokens.inc(event.output_tokens)
        if self._stopped.take(event.sequence) and event.most_tokens is not None:
            self.tokens_saved.inc(max(0, event.most_tokens - event.output_tokens))
        if event.output_tokens:
            exemplar = self._exemplar(event.sequence)
            self.ttft.labels("warm" if event.cached_tokens else "cold").observe(event.ttft_seconds, exemplar)

    def _looped(self, event: LoopsMeasured) -> None:
        exemplar = self._exemplar(event.sequence)
        self.loops.observe(event.loops, exemplar)
        self.norm_ratio.observe(min(event.norm_ratio, MOST_RATIO), exemplar)

    def _step(self, event: StepMeasured) -> None:
        self.steps.inc()
        self.step_tokens.inc(event.tokens)
        self.guard_cpu.inc(event.guard_cpu_seconds)
        self.step_seconds.observe(event.seconds)
        if event.drafted_tokens:
            self.speculated.labels("drafted").inc(event.drafted_tokens)
            self.speculated.labels("accepted").inc(event.accepted_tokens)
        if not event.context_tokens:
            return
        if event.prefill_tokens:
            self.prefill_flops.inc(self._limit.flops_of(event.tokens))
            self.prefill_seconds.inc(event.seconds)
        else:
            self.decode_bytes.inc(self._limit.bytes_of(event.context_tokens))
            self.decode_seconds.inc(event.seconds)
