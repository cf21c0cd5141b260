"""Audits inside vLLM, where the user asks for them: they need a second copy of the model in memory."""

from __future__ import annotations

from collections.abc import Callable

from checkengine.assemble import replica_name
from checkengine.auditing import Conviction
from checkengine.config import Settings
from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.engine_shim.auditing import AuditSteps
from checkengine.engine_shim.vllm.auditing import AuditMaker, ProcessAuditor
from checkengine.guards import EventBus, IncidentBook, Policy
from checkengine.replay.audit import AuditSchedule, CpuBudget, Strata
from checkengine.replay.audit.budget import FixedPace
from checkengine.replay.capture import Capture
from checkengine.replay.fault_limit import FaultLimit
from checkengine.replay.recorder import Recorder
from checkengine.vllm_plugin import switched_on

VARIABLE = "CHECKENGINE_VLLM_AUDIT"


def audits(settings: Settings, bus: EventBus, write: Callable[[Capture], object]) -> AuditMaker | None:
    """None unless CHECKENGINE_VLLM_AUDIT=1 is set. What an audit convicts is an incident of this worker's."""
    if not switched_on(VARIABLE):
        return None
    chosen, kept = settings.audit, settings.capture
    policy = Policy(settings.guards, settings.brake, IncidentBook(), publish=bus.publish, replica=replica_name())

    def make(adapter: EngineAdapter, recorder: Recorder) -> AuditSteps:
        pace = CpuBudget(chosen.cpu_share) if chosen.every_steps is None else FixedPace(chosen.every_steps)
        strata = Strata(int(adapter.environment()["block_size"]), tile=chosen.tile)
        return AuditSteps(
            adapter,
            recorder,
            ProcessAuditor(),
            AuditSchedule(strata, pace, rows_per_audit=chosen.rows),
            publish=bus.publish,
            convict=Conviction(policy),
            write=write,
            waiting=chosen.waiting,
            limit=FaultLimit(kept.per_fault, 3600 * kept.per_fault_hours),
        )

    return make
