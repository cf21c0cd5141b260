"""From settings to a proxy with guards, policy, metrics and traces: the composition root of `checkengine proxy`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time

from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from checkengine import __version__
from checkengine.config import Settings, load_settings
from checkengine.dashboards.live_numbers import LiveNumbers
from checkengine.dashboards.metrics import Metrics
from checkengine.dashboards.proxy_metrics import ProxyMetrics
from checkengine.dashboards.traces import RequestTraces, otlp_exporter, tracer_provider
from checkengine.engine_shim.proxy.app import ProxyApp
from checkengine.engine_shim.proxy.channel import Channel
from checkengine.engine_shim.proxy.fleet_series import FleetSeries
from checkengine.engine_shim.proxy.guarding import Bench, GuardMakers
from checkengine.engine_shim.proxy.judging import Judge, as_finding
from checkengine.engine_shim.proxy.pace import FirstTokens
from checkengine.engine_shim.proxy.parts import ProxyParts
from checkengine.engine_shim.proxy.rescoring import Flagged, Rescoring, score_on_sibling
from checkengine.engine_shim.proxy.routing.fleet import Fleet
from checkengine.engine_shim.proxy.routing.service import Routing, upstreams_of
from checkengine.engine_shim.proxy.sessions import Sessions
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.upstream import OneUpstream, Router
from checkengine.guards import EventBus, IncidentBook, Policy
from checkengine.guards.errors import UserError
from checkengine.guards.events import AuditJudged, GuardDisabled
from checkengine.guards.pipeline import OFF_IN_CONFIGURATION
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.text import TextFinding, TextStart
from checkengine.proxy_controls import ProxyControls, ProxyObserver
from checkengine.replica import replica_name
from checkengine.scanning.registry import ENTRIES, conversation_makers, logprobs_makers, series_makers, text_makers
from checkengine.spooling import open_spool
from checkengine.telling import start_telling

WARM_UP = "A short text, so that whatever compiles at first use has done so before the first request comes. " * 4


@dataclass(slots=True)
class Proxy:
    """A proxy that has not begun to listen; `close` it in the end."""

    app: ProxyApp
    settings: Settings
    bus: EventBus
    policy: Policy
    bench: Bench
    controls: ProxyControls
    closers: list[Callable[[], None]] = field(default_factory=list)

    def warm_up(self) -> None:
        """Before the first request: compiling and loading take seconds."""
        channel = Channel(self.bench, lambda: TextStart("warm-up", WARM_UP))
        channel.add(WARM_UP)
        channel.end()
        for seat in self.bench.seats.values():
            # Compiling is none of what a guard costs a request.
            seat.batches = seat.overruns = seat.overruns_in_a_row = seat.nanoseconds = seat.longest = 0

    def close(self) -> None:
        for close in self.closers:
            close()


def guard_makers(settings: GuardsSettings) -> GuardMakers:
    """Those of the scan, by their names in the configuration. Guards that are off are made too: they can be switched
    on at run time."""
    names = tuple(ENTRIES)
    named = {name: ENTRIES[name].settings for name in names}
    return GuardMakers(
        {named[name]: make for name, make in text_makers(names, settings).items()},
        {named[name]: make for name, make in logprobs_makers(names, settings).items()},
        {named[name]: make for name, make in conversation_makers(names, settings).items()},
    )


def assemble_proxy(
    settings: Settings, router: Router | None = None, registry: CollectorRegistry | None = None
) -> Proxy:
    """Raises UserError where the settings name no upstream, or one that is none."""
    bus, book, registry = EventBus(), IncidentBook(), registry or CollectorRegistry()
    policy = Policy(settings.guards, settings.brake, book, publish=bus.publish, replica=replica_name())
    bench = Bench(
        guard_makers(settings.guards),
        settings.guards,
        disabled=lambda guard, reason: bus.publish(GuardDisabled(guard, reason, time())),
    )
    metrics = Metrics(registry, __version__)
    bus.subscribe(metrics.handle, name="metrics")
    counters = ProxyMetrics(registry, lambda: parts.running)
    router, routing = (router, None) if router is not None else _routed(settings.proxy, counters)
    parts = _parts(settings, router, routing, bench, Judge(policy, bus.publish))
    controls = ProxyControls(parts, bench, policy, metrics, routing)
    proxy = Proxy(ProxyApp(parts), settings, bus, policy, bench, controls, [bus.close])
    parts.observer = ProxyObserver(counters, _traces(proxy), _series(proxy))
    _tell_numbers(proxy, book, registry)
    if settings.proxy.rescore_per_minute and len(router.upstreams()) > 1:
        rescoring = _rescoring(settings.proxy, bus)
        parts.rescoring = rescoring
        proxy.closers.insert(0, rescoring.close)
    return proxy


def _routed(settings: ProxySettings, counters: ProxyMetrics) -> tuple[Router, Routing | None]:
    found = routing_of(settings, counters)
    return (found.router, found) if isinstance(found, Routing) else (found, None)


def _parts(settings: Settings, router: Router, routing: Routing | None, bench: Bench, judge: Judge) -> ProxyParts:
    chosen = settings.proxy
    return ProxyParts(
        chosen,
        router,
        bench,
        judge,
        FirstTokens(settings.guards.latency),
        Sessions(chosen.session_header, chosen.sessions),
        services=[routing] if routing is not None else [],
    )


def _tell_numbers(proxy: Proxy, book: IncidentBook, registry: CollectorRegistry) -> None:
    """Spool and webhooks where they are wanted, and what a scrape reads at the moment."""
    parts, bench, bus, policy = proxy.app.parts, proxy.bench, proxy.bus, proxy.policy
    spool, telling = open_spool(proxy.settings, bus, replica_name()), start_telling(proxy.settings, bus)
    proxy.closers += [part.close for part in (spool, telling) if part is not None]
    fleet: Fleet | None = getattr(parts.router, "fleet", None)
    registry.register(
        LiveNumbers(
            listeners_dropped=bus.dropped,
            guards_active=lambda: {
                name: not seat.reason and parts.enabled
                for name, seat in bench.seats.items()
                if seat.reason != OFF_IN_CONFIGURATION
            },
            guards_braked=lambda: {name: policy.braked(name) for name in bench.seats},
            would_have_stopped=lambda: dict.fromkeys(bench.seats, 0) | dict(policy.would_have_stopped()),
            incidents_open=lambda: sum(incident.open for incident in book.incidents(time())),
            spool_dropped=(lambda: spool.dropped) if spool is not None else None,
            notifications=telling.notifications if telling is not None else None,
            canaries=(lambda: fleet.canaries) if fleet is not None else None,
            upstreams=fleet.standings if fleet is not None else None,
        )
    )


def _rescoring(settings: ProxySettings, bus: EventBus) -> Rescoring:
    """Its verdicts are told as those of audits are."""
    token = settings.upstream_token.get_secret_value() if settings.upstream_token is not None else None

    def told(flagged: Flagged, verdict: str) -> None:
        bus.publish(AuditJudged(flagged.incident, flagged.sequence, 0, verdict, time()))

    return Rescoring(score_on_sibling(token), told, settings.rescore_per_minute)


def _series(proxy: Proxy) -> FleetSeries | None:
    """Drift over all requests of a model, as `[guards.drift]` says."""
    settings, policy = proxy.settings.guards, proxy.policy
    if settings.drift.action == "off":
        return None

    def told(model: str, finding: TextFinding) -> None:
        policy.file(as_finding("drift", f"{model}:{finding.id}", finding), time())

    series = FleetSeries(series_makers(("drift",), settings)["drift"], told)
    proxy.closers.insert(0, series.close)
    return series


def _traces(proxy: Proxy) -> RequestTraces | None:
    endpoint = proxy.settings.traces.otlp_endpoint
    if endpoint is None:
        return None
    provider = tracer_provider(__version__, [otlp_exporter(endpoint)])
    traces = RequestTraces(provider)
    # At once: on a queue a finding could come after its request's span has ended, and be lost. They are rare.
    proxy.bus.subscribe_sync(traces.handle, name="traces")
    proxy.closers.append(provider.shutdown)
    return traces


def routing_of(settings: ProxySettings, metrics: ProxyMetrics) -> OneUpstream | Routing:
    """One upstream needs no choice, and gets no canaries: it may be a vendor's, who counts them."""
    upstreams = upstreams_of(settings.upstreams, settings.routing)
    if not upstreams:
        raise UserError("no upstream: give --upstream http://engine:8000, or upstreams in [proxy] of checkengine.toml")
    if len(upstreams) == 1:
        return OneUpstream(upstreams[0])
    token = settings.upstream_token.get_secret_value() if settings.upstream_token is not None else None
    return Routing(upstreams, settings.routing, token=token, tell=lambda event: metrics.routed(event.name, event.what))


def proxy_settings(config: Path | None, upstreams: Sequence[str], host: str | None, port: int | None) -> Settings:
    """The configuration with what the command line says. Raises UserError for what cannot be used."""
    settings = load_settings(config)
    given = {"host": host, "port": port, "upstreams": tuple(upstreams) or None}
    changed = {name: value for name, value in given.items() if value is not None}
    try:
        proxy = ProxySettings.model_validate(settings.proxy.model_dump() | changed)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"--{fault['loc'][0]} {fault['input']!r}: {fault['msg']}") from error
    return settings.model_copy(update={"proxy": proxy})
