"""Events: what the shim tells to whoever listens. Listeners never slow a step down (design rule 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checkengine.guards.action import Action
from checkengine.guards.finding import Finding


@dataclass(frozen=True, slots=True)
class FindingRaised:
    finding: Finding
    incident: str
    time: float
    """Unix seconds, like every time in an event."""
    primary: bool
    """False where the sequence already has a finding with a deeper cause: evidence, not an incident."""


@dataclass(frozen=True, slots=True)
class ActionTaken:
    action: Action
    time: float


@dataclass(frozen=True, slots=True)
class GuardDisabled:
    guard: str
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class BrakePulled:
    guard: str
    stopped: int
    window_seconds: float
    time: float


@dataclass(frozen=True, slots=True)
class BundleWritten:
    bundle: str
    incident: str
    path: str
    time: float
    size_bytes: int = 0
    content: str = ""
    """none or full; empty where the writer does not tell."""
    expires: float | None = None
    """When its content may no longer be read."""


@dataclass(frozen=True, slots=True)
class AuditJudged:
    """A sampled step was judged off the serving path; `verdict` is the Verdict's kind."""

    incident: str | None
    sequence: str
    step: int
    verdict: str
    time: float


@dataclass(frozen=True, slots=True)
class AuditCoverage:
    """How much was audited since the process began; told now and then, and at its end."""

    strata: Mapping[str, Sequence[int]]
    """By stratum: rows seen, audited, convicted."""
    judged: int
    """Audited steps."""
    verdicts: Mapping[str, int]
    skipped: int
    """Steps that were drawn when the budget was spent."""
    dropped: int
    """Steps that were drawn when the judge was behind, or whose audit failed."""
    cpu_seconds: float
    time: float


@dataclass(frozen=True, slots=True)
class SequenceEnded:
    sequence: str
    reason: str
    prompt_tokens: int
    output_tokens: int
    ttft_seconds: float
    total_seconds: float
    time: float
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; None where nobody knows."""
    most_tokens: int | None = None
    """Output tokens that its request allowed."""


@dataclass(frozen=True, slots=True)
class StepMeasured:
    """Once a step, for counters only."""

    step: int
    rows: int
    tokens: int
    seconds: float
    guard_cpu_seconds: float
    time: float
    context_tokens: int = 0
    """KV slots that the step's attention has to read, over all rows; 0 where nobody counted."""
    prefill_tokens: int = 0
    """Of `tokens`, those of rows that compute more than one."""
    drafted_tokens: int = 0
    """Proposed by a speculator and verified in this step."""
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LoopsMeasured:
    """Of one sequence on a looped model, when it is over."""

    sequence: str
    passes: int
    """Forward passes that sampled."""
    loops: int
    """Over all of them."""
    norm_ratio: float
    """Largest of a pass: norm of the state after the last loop over that before it; infinite where it overflowed."""
    time: float


Event = (
    FindingRaised
    | ActionTaken
    | GuardDisabled
    | BrakePulled
    | BundleWritten
    | AuditJudged
    | AuditCoverage
    | SequenceEnded
    | StepMeasured
    | LoopsMeasured
)
