"""Audits: now and then a healthy-looking step is judged in memory, off the serving path (design rule 12)."""

from checkengine.replay.audit.auditor import Auditor, audit_event
from checkengine.replay.audit.bound import rate_bound
from checkengine.replay.audit.budget import CpuBudget
from checkengine.replay.audit.coverage import Coverage, StratumCount
from checkengine.replay.audit.schedule import AuditSchedule, Selection
from checkengine.replay.audit.strata import Strata

__all__ = [
    "AuditSchedule",
    "Auditor",
    "Coverage",
    "CpuBudget",
    "Selection",
    "Strata",
    "StratumCount",
    "audit_event",
    "rate_bound",
]
