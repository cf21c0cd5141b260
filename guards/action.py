"""What is to be done about a finding."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ActionKind(StrEnum):
    OBSERVE = "observe"
    WARN = "warn"
    STOP = "stop"
    RETRY = "retry"
    QUARANTINE = "quarantine"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    sequence: str
    finding: str
    """The kind of the finding that caused it."""
    incident: str
    keep_tokens: int
    """Output tokens of the sequence before the first bad one; a stop or retry keeps these."""
