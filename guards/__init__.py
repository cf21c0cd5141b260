"""Policy: what a reading means, what to do about it, what to tell people.

Names load at first use: the guards import numba and their tables, and a command that only wants an error must not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkengine.detectors.lazy import lazy_exports

if TYPE_CHECKING:
    from checkengine.guards.action import Action, ActionKind
    from checkengine.guards.build import build_guards
    from checkengine.guards.bus import EventBus
    from checkengine.guards.finding import Finding, Severity
    from checkengine.guards.incident import Incident, IncidentBook
    from checkengine.guards.pipeline import Pipeline
    from checkengine.guards.policy import Policy
    from checkengine.guards.settings import BrakeSettings, GuardsSettings
    from checkengine.guards.step import SequenceStart, StepView

__all__ = [
    "Action",
    "ActionKind",
    "BrakeSettings",
    "EventBus",
    "Finding",
    "GuardsSettings",
    "Incident",
    "IncidentBook",
    "Pipeline",
    "Policy",
    "SequenceStart",
    "Severity",
    "StepView",
    "build_guards",
]

_MODULES = {
    "action": ("Action", "ActionKind"),
    "build": ("build_guards",),
    "bus": ("EventBus",),
    "finding": ("Finding", "Severity"),
    "incident": ("Incident", "IncidentBook"),
    "pipeline": ("Pipeline",),
    "policy": ("Policy",),
    "settings": ("BrakeSettings", "GuardsSettings"),
    "step": ("SequenceStart", "StepView"),
}
__getattr__ = lazy_exports(__name__, _MODULES)
