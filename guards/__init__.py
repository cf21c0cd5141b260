"""Policy: what a reading means, what to do about it, what to tell people."""

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
