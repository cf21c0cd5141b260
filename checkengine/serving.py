"""From a model's name to a server with guards, metrics and traces."""

from __future__ import annotations

import hashlib
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from opentelemetry.trace import TracerProvider
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from checkengine import __version__
from checkengine.assemble import EngineShim, embed
from checkengine.config import Settings, load_settings
from checkengine.dashboards.collector import Totals
from checkengine.dashboards.fleet_watch import FleetWatch
from checkengine.dashboards.limits import NO_LIMIT, PhysicalLimit
from checkengine.dashboards.metrics import LiveNumbers, Metrics
from checkengine.dashboards.traces import CountedExporter, RequestTraces, otlp_exporter, tracer_provider
from checkengine.engine_shim.engine.observer import RequestEnd, RequestStart
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.engine.runtime import EngineRuntime
from checkengine.engine_shim.engine.server import Service, build_app
from checkengine.engine_shim.engine.server_sessions import Conversations
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.request_notes import RequestNotes, RequestRecords
from checkengine.engine_shim.settings import ServerSettings
from checkengine.guards.errors import UserError
from checkengine.guards.events import SequenceEnded
from checkengine.guards.pipeline import OFF_IN_CONFIGURATION
from checkengine.physical_limit import physical_limit
from checkengine.storage import CollectorThread
from checkengine.switches import ShimSwitches


@dataclass(slots=True)
class Served:
    """A server that has not begun to listen; `close` it in the end."""

    app: FastAPI
    runtime: EngineRuntime
    settings: ServerSettings
    model_name: str
    metrics: Metrics
    closers: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        for close in self.closers:
            close()


@dataclass(frozen=True, slots=True)
class Told:
    """What the rest of the process tells metrics."""

    collector: Totals | None = None
    notifications: Sequence[Callable[[], Mapping[tuple[str, str], int]]] = ()
    drift: Callable[[], Mapping[str, tuple[float, float]]] | None = None


class ServerObserver:
    """Tells metrics and traces what the server's runtime tells."""

    def __init__(self, metrics: Metrics, traces: RequestTraces) -> None:
        self._metrics, self._traces = metrics, traces

    def started(self, start: RequestStart) -> None:
        self._traces.started(start)

    def produced(self, sequence: str, tokens: int, seconds: float, first: bool) -> None:
        self._metrics.produced(sequence, tokens, seconds, first)

    def ended(self, end: RequestEnd) -> None:
        self._metrics.request_ended(end.error)
        self._traces.ended(end)


def assemble_server(
    model: str, *, config: Path | None = None, host: str | None = None, port: int | None = None
) -> Served:
    """Loads the model. Raises UserError for a model or a configuration that cannot be used."""
    settings = load_settings(config)
    chosen = _server_settings(settings, host, port)
    directory = model_directory(model)
    exporters = [CountedExporter(otlp_exporter(endpoint))] if (endpoint := settings.traces.otlp_endpoint) else []
    provider = tracer_provider(__version__, exporters)
    loaded, tokenizer = _load(directory, settings)
    engine, shim = embed(loaded, tokenizer, settings)
    assert shim is not None
    limit = physical_limit(loaded)
    name = served_name(model, directory)
    assembly = shim.assembly
    watch = FleetWatch(settings.guards, assembly.bus.publish, assembly.book)
    if settings.spool.enabled:
        watch.warm_up()
    collector = CollectorThread(settings, watch=watch) if settings.spool.enabled else None
    totals = collector.totals if collector is not None else None
    told = Told(totals, [each.notifications for each in exporters], watch.evidence if totals is not None else None)
    served = build_server(engine, shim, tokenizer, chosen, name=name, provider=provider, limit=limit, told=told)
    if collector is not None:
        # Closed after the shim, whose last records it still collects.
        served.closers.append(collector.close)
    served.closers.append(provider.shutdown)
    return served


def build_server(
    engine: Any,
    shim: EngineShim,
    tokenizer: Any,
    settings: ServerSettings,
    *,
    name: str,
    provider: TracerProvider,
    registry: CollectorRegistry | None = None,
    limit: PhysicalLimit = NO_LIMIT,
    told: Told | None = None,
) -> Served:
    """The app with its listeners, over an engine whose shim is in place. `name` is the model's, as clients call it."""
    assembly = shim.assembly
    engine.guard_stop_reason = settings.finish_reason
    traces = RequestTraces(provider, shim.assembly.settings.traces.convention)
    metrics = Metrics(registry or CollectorRegistry(), __version__, trace_of=traces.trace_of, limit=limit)
    assembly.bus.subscribe(metrics.handle, name="metrics")
    # At once: on a queue a finding could come after its request's span has ended, and be lost. They are rare.
    assembly.bus.subscribe_sync(traces.handle, name="traces")
    metrics.add_live(_live_numbers(engine, shim, told or Told()))
    runtime = EngineRuntime(
        engine,
        warm_up=lambda: warm_up(engine),
        observer=ServerObserver(metrics, traces),
        publish=assembly.bus.publish,
    )
    keep_requests(shim, runtime, name, traces)
    service = Service(runtime, tokenizer, name, engine.max_length, settings, conversations=Conversations(engine.tiers))
    app = build_app(service, metrics=metrics.exposition, controller=ShimSwitches(shim))
    return Served(app, runtime, settings, name, metrics, [shim.close])


def keep_requests(shim: EngineShim, runtime: EngineRuntime, name: str, traces: RequestTraces) -> None:
    """A record of every sequence, without content, for a week; and an operator's word to take no new ones."""
    assembly = shim.assembly
    if assembly.spool is None:
        return
    notes, settings = RequestNotes(), assembly.settings
    told = settings.model_dump_json(include={"guards", "brake", "engine", "logits"})
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    records = RequestRecords(assembly.spool, notes, model=name, configuration=digest, trace_of=traces.trace_of)
    assembly.parts.listeners.append(notes)
    assembly.bus.subscribe(records.handle, name="requests", kinds=(SequenceEnded,))
    if shim.registered is not None:
        shim.registered.drained_by(runtime.hold_back, lambda: runtime.held_back)


def warm_up(engine: Any) -> None:
    """One short generation, so that whatever compiles at first use has done so before the server is ready. The prompt
    is shorter than a block: nothing of it stays in the prefix cache."""
    engine.submit(GenerationRequest("warm-up", [0, 1, 2], SamplingParameters(temperature=0, max_tokens=2)))
    while engine.has_work:
        engine.step()


def _live_numbers(engine: Any, shim: EngineShim, told: Told) -> LiveNumbers:
    assembly = shim.assembly
    recorder, pipeline, writer = assembly.recorder, assembly.pipeline, assembly.writer
    spool, totals = assembly.spool, told.collector
    notifications = [*told.notifications, *([assembly.telling.notifications] if assembly.telling is not None else [])]
    return LiveNumbers(
        engine=lambda: engine.stats,
        recorder_dropped=(lambda: recorder.dropped) if recorder is not None else None,
        listeners_dropped=assembly.bus.dropped,
        guards_active=lambda: {
            name: state.active and shim.enabled
            for name, state in pipeline.states().items()
            if state.reason != OFF_IN_CONFIGURATION
        },
        guard_seconds=lambda: {name: state.cpu_seconds for name, state in pipeline.states().items()},
        guards_braked=lambda: {name: assembly.policy.braked(name) for name in pipeline.states()},
        would_have_stopped=lambda: with_zeros(assembly.policy.would_have_stopped(), pipeline.states()),
        incidents_open=lambda: sum(incident.open for incident in assembly.book.incidents(time.time())),
        spool_dropped=(lambda: spool.dropped) if spool is not None else None,
        notifications=(lambda: dict(ChainMap(*(dict(each()) for each in notifications)))) if notifications else None,
        collector=(lambda: totals) if totals is not None else None,
        drift=told.drift,
        captures=writer.counts.outcomes if writer is not None else None,
        capture_levels=writer.counts.levels if writer is not None else None,
        reproducers=assembly.reproducers.outcomes if assembly.reproducers is not None else None,
    )


def with_zeros(counts: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    return {name: counts.get(name, 0) for name in names}


def served_name(model: str, directory: Path) -> str:
    """What clients call the model: never a path of this machine."""
    return directory.resolve().name if (Path(model) / "config.json").is_file() else model


def _load(directory: Path, settings: Settings) -> tuple[Any, Any]:
    import torch

    from checkengine.engine_shim.engine.load import load_model

    try:
        return load_model(directory, getattr(torch, settings.engine.dtype))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot load the model in {directory}: {error}") from error


def _server_settings(settings: Settings, host: str | None, port: int | None) -> ServerSettings:
    given = {key: value for key, value in {"host": host, "port": port}.items() if value is not None}
    try:
        return ServerSettings.model_validate(settings.server.model_dump() | given)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"--{fault['loc'][0]} {fault['input']!r}: {fault['msg']}") from error
