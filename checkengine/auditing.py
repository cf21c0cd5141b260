"""Audits of the embedded engine: the judge runs over the engine's own weights, on memory of its own."""

from __future__ import annotations

import time
from typing import Any

from checkengine.engine_shim.auditing import AuditSteps
from checkengine.engine_shim.bundles import BundleWriter
from checkengine.guards.finding import Finding
from checkengine.guards.policy import Policy
from checkengine.replay.audit import Auditor, AuditSchedule, CpuBudget, Strata
from checkengine.replay.audit.budget import FixedPace
from checkengine.replay.fault_limit import FaultLimit
from checkengine.replay.recorder import Recorder


class Conviction:
    """Files an audit's finding with the policy, which opens the incident and publishes it."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __call__(self, finding: Finding) -> str:
        return self._policy.file(finding, time.time())


def audit_embedded(engine: Any, assembly: Any, recorder: Recorder, writer: BundleWriter | None) -> AuditSteps:
    """`engine` is an embedded Engine, `assembly` its Assembly."""
    from checkengine.engine_shim.engine.executor import EmbeddedExecutor

    executor = EmbeddedExecutor.over(engine.model, engine.environment())
    chosen, kept = assembly.settings.audit, assembly.settings.capture
    pace = CpuBudget(chosen.cpu_share) if chosen.every_steps is None else FixedPace(chosen.every_steps)
    strata = Strata(engine.settings.block_size, tile=chosen.tile)
    schedule = AuditSchedule(strata, pace, rows_per_audit=chosen.rows)
    return AuditSteps(
        engine,
        recorder,
        Auditor(executor),
        schedule,
        publish=assembly.bus.publish,
        convict=Conviction(assembly.policy),
        write=writer.write if writer is not None else None,
        waiting=chosen.waiting,
        limit=FaultLimit(kept.per_fault, 3600 * kept.per_fault_hours),
    )
