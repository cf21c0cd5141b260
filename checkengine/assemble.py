"""The composition root: from settings to a shim with its guards, recorder, captures and listeners."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from checkengine.auditing import Conviction, audit_embedded
from checkengine.config import Settings, load_settings
from checkengine.detectors import Vocabulary, warm_up
from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.engine_shim.auditing import AuditSteps
from checkengine.engine_shim.bundles import BundleWriter
from checkengine.engine_shim.capturing import Budget, CaptureOnFinding
from checkengine.engine_shim.reproducers import Reproducers
from checkengine.engine_shim.shim import Shim, ShimParts
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards import EventBus, IncidentBook, Pipeline, Policy, build_guards
from checkengine.replay.fault_limit import FaultLimit
from checkengine.replay.recorder import Recorder
from checkengine.replica import replica_name as replica_name
from checkengine.reproducing import reproduce_embedded
from checkengine.storage import open_spool
from checkengine.telling import Telling, start_telling

if TYPE_CHECKING:
    from checkengine.registering import Registered

logger = logging.getLogger("checkengine.shim")


@dataclass(slots=True)
class Assembly:
    """Everything that was built around one engine; `close` writes what waits."""

    settings: Settings
    bus: EventBus
    book: IncidentBook
    pipeline: Pipeline
    policy: Policy
    recorder: Recorder | None
    parts: ShimParts
    writer: BundleWriter | None = None
    captures: CaptureOnFinding | None = None
    audits: AuditSteps | None = None
    reproducers: Reproducers | None = None
    spool: SpoolWriter | None = None
    telling: Telling | None = None
    closers: list[Any] = field(default_factory=list)
    last: list[Any] = field(default_factory=list)
    """Closed after the bus: what its listeners write into."""

    def close(self) -> None:
        """Each part is closed whatever the others do; what fails is logged."""
        for part in (*self.closers, self.bus, *self.last):
            try:
                part.close()
            except Exception:
                logger.exception("closing %s failed", type(part).__name__)


def assemble(
    adapter: EngineAdapter,
    settings: Settings,
    vocabulary: Vocabulary,
    *,
    logits_dtype: torch.dtype = torch.float32,
) -> Assembly:
    """Guards, policy, recorder and captures for an engine. Compiles what needs compiling: call before ready."""
    warm_up((logits_dtype,))
    bus, book = EventBus(), IncidentBook()
    environment = adapter.environment()
    pipeline = Pipeline(build_guards(settings.guards, vocabulary), settings.guards, publish=bus.publish)
    policy = Policy(
        settings.guards,
        settings.brake,
        book,
        publish=bus.publish,
        replica=replica_name(),
        kernel=str(environment.get("kernel", "")),
        quarantined_fraction=getattr(adapter, "quarantined_fraction", lambda: 0.0),
    )
    recorder = build_recorder(settings)
    level = None if settings.logits.level == "auto" else settings.logits.level
    parts = ShimParts(pipeline, policy, bus, recorder, level=level)
    assembly = Assembly(settings, bus, book, pipeline, policy, recorder, parts)
    if (spool := open_spool(settings, bus, replica_name())) is not None:
        assembly.spool = spool
        assembly.last.append(spool)
    if (telling := start_telling(settings, bus)) is not None:
        assembly.telling = telling
        assembly.last.append(telling)
    if recorder is not None and settings.capture.enabled:
        if adapter.capabilities.snapshot:
            add_captures(assembly, adapter, recorder)
        else:
            logger.warning("this engine cannot snapshot its KV memory: incidents get no bundle")
    return assembly


def build_recorder(settings: Settings) -> Recorder | None:
    chosen = settings.recorder
    return Recorder(chosen.steps, chosen.bytes, chosen.checkpoint_every) if chosen.enabled else None


def add_captures(assembly: Assembly, adapter: EngineAdapter, recorder: Recorder) -> None:
    settings = assembly.settings
    assembly.writer = BundleWriter(settings.capture, assembly.bus, assembly.book)
    assembly.captures = CaptureOnFinding(
        adapter,
        recorder,
        assembly.writer.write,
        incident_of=assembly.policy.incident_of,
        window_steps=settings.capture.window_steps,
        after_steps=settings.capture.after_steps,
        configuration={"guards": settings.guards.model_dump(mode="json")},
        budget=Budget(settings.capture.level, settings.capture.kv_bytes, settings.capture.all_rows),
        limit=FaultLimit(settings.capture.per_fault, 3600 * settings.capture.per_fault_hours),
        counts=assembly.writer.counts,
        ready=assembly.writer.ready,
    )
    assembly.parts.listeners.append(assembly.captures)
    assembly.closers.append(assembly.captures)


class EngineShim(Shim):
    """The shim for an engine of one's own: ten lines in its step loop (README).

    `tokenizer` is a transformers tokenizer (guards that read text need its vocabulary); `config` is the path of a
    checkengine.toml, or Settings; without it the file is looked for as `load_settings` does.
    Raises ConfigurationError for a configuration that cannot be used.
    """

    def __init__(
        self,
        adapter: EngineAdapter,
        *,
        tokenizer: Any,
        config: Settings | Path | str | None = None,
        vocabulary_size: int | None = None,
        logits_dtype: torch.dtype = torch.float32,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        """`vocabulary_size` is the number of logits columns where that is more than the tokenizer knows;
        `vocabulary` is the tokenizer's, where it was built before."""
        settings = config if isinstance(config, Settings) else load_settings(config)
        vocabulary = vocabulary or Vocabulary.from_tokenizer(tokenizer, vocabulary_size)
        self.assembly = assemble(adapter, settings, vocabulary, logits_dtype=logits_dtype)
        super().__init__(adapter, self.assembly.parts)
        self.registered = self._register(adapter)

    def _register(self, adapter: EngineAdapter) -> Registered | None:
        """None without a spool: then nobody would hear."""
        spool = self.assembly.spool
        if spool is None:
            return None
        from checkengine.registering import Registered
        from checkengine.switches import ShimSwitches

        assembly = self.assembly
        registered = Registered(
            ShimSwitches(self), assembly.policy, assembly.settings, spool, replica_name(), adapter.environment()
        )
        # Before the spool is closed: that the replica is gone is its last word.
        self.assembly.last.insert(0, registered)
        return registered

    def close(self) -> None:
        """Write what waits and end the threads."""
        self.assembly.close()


def embed(
    model: Any,
    tokenizer: Any,
    settings: Settings,
    faults: Sequence[Any] = (),
    *,
    watched: bool = True,
    vocabulary: Vocabulary | None = None,
) -> tuple[Any, EngineShim | None]:
    """The embedded engine over a loaded model, with a shim (`watched`) or bare, for comparison."""
    from checkengine.engine_shim.engine.engine import Engine
    from checkengine.replay.undo import UndoRing

    recorder = settings.recorder
    undo = UndoRing(recorder.undo_steps, recorder.undo_bytes) if watched and recorder.undo_steps else None
    engine = Engine(model, tokenizer, settings.engine, undo=undo, faults=faults)
    if not watched:
        return engine, None
    vocabulary = vocabulary or Vocabulary.from_tokenizer(tokenizer, model.get_output_embeddings().weight.shape[0])
    shim = EngineShim(engine, tokenizer=tokenizer, config=settings, logits_dtype=model.dtype, vocabulary=vocabulary)
    engine.shim = shim
    assembly = shim.assembly
    if engine.tiers is not None:
        engine.tiers.tell = Conviction(assembly.policy)
        assembly.closers.append(engine)
    if settings.capture.reproducer and settings.capture.content == "none" and assembly.writer is not None:
        assembly.reproducers = reproduce_embedded(engine, settings.capture, assembly.writer)
        assembly.writer.after = assembly.reproducers.take
        # After the captures: the last one is still to be made something of.
        assembly.closers.append(assembly.reproducers)
    if settings.audit.enabled and assembly.recorder is not None:
        assembly.audits = audit_embedded(engine, assembly, assembly.recorder, assembly.writer)
        assembly.parts.listeners.append(assembly.audits)
        # Before the captures are closed: a conviction may still be written.
        assembly.closers.insert(0, assembly.audits)
    return engine, shim
