"""The composition root inside vLLM: guards in the engine core's scheduler, an observer in each worker."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from opentelemetry.trace import TracerProvider, get_tracer_provider
from prometheus_client import CollectorRegistry

from checkengine import __version__
from checkengine.assemble import replica_name
from checkengine.config import Settings, load_settings
from checkengine.dashboards.metric_pages import MetricsPage
from checkengine.dashboards.metrics import MULTIPROCESS, Metrics
from checkengine.dashboards.traces import otlp_exporter, tracer_provider
from checkengine.detectors import Vocabulary
from checkengine.engine_shim.bundles import BundleWriter
from checkengine.engine_shim.request_notes import RequestRecords
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.engine_shim.vllm.armed_orders import ArmedOrders
from checkengine.engine_shim.vllm.black_box import BlackBox
from checkengine.engine_shim.vllm.capture_orders import CaptureOrders
from checkengine.engine_shim.vllm.loud_memory import LoudMemory
from checkengine.engine_shim.vllm.quarantine import Quarantine
from checkengine.engine_shim.vllm.request_ends import answered_as
from checkengine.engine_shim.vllm.scheduler import SchedulerGuards, SchedulerListener
from checkengine.engine_shim.vllm.seen_steps import SchedulerNotes
from checkengine.engine_shim.vllm.switch_file import SwitchFile
from checkengine.engine_shim.vllm.worker import Observer
from checkengine.guards import EventBus, IncidentBook, Pipeline, Policy, build_guards
from checkengine.guards.events import ActionTaken, FindingRaised, SequenceEnded
from checkengine.guards.step import SequenceStart
from checkengine.storage import open_spool
from checkengine.vllm_auditing import audits
from checkengine.vllm_plugin import PAGES, switched_on
from checkengine.vllm_traces import FindingSpans

logger = logging.getLogger("vllm.checkengine")

LOUD_MEMORY = "CHECKENGINE_VLLM_LOUD_MEMORY"
"""For canary replicas: engine_shim/vllm/loud_memory.py."""


def join_vllm_s_log() -> None:
    """What we tell stands in vLLM's log, in its form, where nobody has set up another one."""
    theirs, ours = logging.getLogger("vllm"), logging.getLogger("checkengine")
    if theirs.handlers and not ours.handlers and not logging.getLogger().handlers:
        ours.handlers, ours.propagate = list(theirs.handlers), False
        ours.setLevel(theirs.level)


def build_observer(worker: Any) -> Observer:
    join_vllm_s_log()
    settings = load_settings()
    listeners = [black_box(settings)] if settings.recorder.enabled else []
    level = None if settings.logits.level == "auto" else settings.logits.level
    return Observer(level, listeners, LoudMemory(switched_on(LOUD_MEMORY)))


def black_box(settings: Settings) -> BlackBox:
    """Of one worker. Bundles that it writes are told in a spool of its own; the incident is the engine core's."""
    bus = EventBus()
    open_spool(settings, bus, replica_name())
    counted(bus)  # Bundles and audits; its page is written by a thread of its own until the process ends.
    writer = BundleWriter(settings.capture, bus, IncidentBook())
    guards = {"guards": settings.guards.model_dump(mode="json")}
    made = audits(settings, bus, writer.write)
    return BlackBox(writer.write, settings.recorder, settings.capture, guards, writer.counts, made)


def build_guards_of(scheduler: Any) -> SchedulerGuards:
    """Guards, policy and spool of one engine core. Raises ConfigurationError."""
    join_vllm_s_log()
    settings = load_settings()
    config = scheduler.vllm_config
    bus, book = EventBus(), IncidentBook()
    pipeline = Pipeline(build_guards(settings.guards, vocabulary_of(config)), settings.guards, publish=bus.publish)
    # A guard may compile when its first sequence begins: before the engine is ready.
    pipeline.begin(SequenceStart(0, "warm-up", (0,)))
    pipeline.forget("warm-up")
    policy = Policy(
        settings.guards,
        settings.brake,
        book,
        publish=bus.publish,
        replica=replica_name(),
        kernel=kernel_of(config),
    )
    spool = open_spool(settings, bus, replica_name())
    captured = settings.recorder.enabled and settings.capture.enabled
    armed = ArmedOrders(policy.incident_of) if captured else None
    listeners: list[SchedulerListener] = [CaptureOrders(policy.incident_of), armed] if armed is not None else []
    if spool is not None:
        listeners.append(kept_requests(settings, config, bus, spool))
    began = traced(settings, config, bus)
    switches = SwitchFile(settings.spool.directory)
    guards = SchedulerGuards(pipeline, policy, bus, Quarantine(), listeners, [bus], began, switches)
    if spool is not None:
        from checkengine.vllm_registering import register

        # Before the spool is closed: that the replica is gone is its last word.
        guards.closers += [register(guards, armed, settings, spool, config), spool]
    if (page := counted(bus)) is not None:
        guards.closers.append(page)
    return guards


def kept_requests(settings: Settings, config: Any, bus: EventBus, spool: SpoolWriter) -> SchedulerNotes:
    """A record of every request, without content."""
    notes = SchedulerNotes()
    model = str(config.model_config.served_model_name or config.model_config.model)
    told = settings.model_dump_json(include={"guards", "brake", "logits"}) + kernel_of(config)
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    name = Path(model).name
    records = RequestRecords(spool, notes, model=name, configuration=digest, request_of=answered_as)
    bus.subscribe(records.handle, name="requests", kinds=(SequenceEnded,))
    return notes


def traced(settings: Settings, config: Any, bus: EventBus) -> Callable[[Any], None]:
    """Into vLLM's traces where it has any (`--otlp-traces-endpoint`), else where `[traces]` says; else nowhere."""
    provider: TracerProvider
    if config.observability_config.otlp_traces_endpoint:
        provider = get_tracer_provider()
    elif settings.traces.otlp_endpoint:
        provider = tracer_provider(__version__, [otlp_exporter(settings.traces.otlp_endpoint)])
    else:
        return lambda request: None
    spans = FindingSpans(provider)
    bus.subscribe(spans.handle, name="traces", kinds=(FindingRaised, ActionTaken))
    return spans.begun


def counted(bus: EventBus) -> MetricsPage | None:
    """Counts events for vLLM's `/metrics`, which another process serves. Where vLLM runs several API servers it sets
    prometheus-client's multiprocess mode, and values reach all of them without us."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, __version__)
    bus.subscribe(metrics.handle, name="metrics")
    folder = os.environ.get(PAGES)
    if not folder or MULTIPROCESS in os.environ:
        return None
    try:
        return MetricsPage(registry, folder)
    except OSError as error:
        logger.error("checkengine: no metrics on /metrics: %s cannot be made (%s)", folder, error.strerror)
        return None


def vocabulary_of(config: Any) -> Vocabulary:
    """Of the model's tokenizer, as vLLM loads it; without one every id of the head is possible and no text known."""
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer, size = cached_tokenizer_from_config(config.model_config), config.model_config.get_vocab_size()
    return Vocabulary.from_tokenizer(tokenizer, size) if tokenizer is not None else unknown_vocabulary(size)


def unknown_vocabulary(size: int) -> Vocabulary:
    tables = np.zeros(size, np.uint8)
    return Vocabulary((b"",) * size, np.ones(size, np.bool_), tables, tables.astype(np.bool_), frozenset(), {})


def kernel_of(config: Any) -> str:
    """What tells one numeric configuration from another one in an incident."""
    import vllm

    runner = "v2" if config.use_v2_model_runner else "v1"
    dtype = str(config.model_config.dtype).rpartition(".")[2]
    return f"vllm {vllm.__version__}/{runner}/{config.device_config.device_type}/{dtype}"
