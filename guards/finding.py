"""A finding: what a guard read, on which sequence, and how it ranks as a cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Severity(IntEnum):
    """What a finding may lead to: INFO nothing, WARNING a warning, ERROR whatever its guard's action is."""

    INFO = 0
    WARNING = 1
    ERROR = 2


CAUSE_ORDER: tuple[str, ...] = (
    "logits.nonfinite",
    "logits.uniform",
    "logits.magnitude",
    "embedding.nonfinite",
    "embedding.zero",
    "embedding.constant",
    "token.impossible",
    "sampler.inconsistent",
    "kv.integrity",
    "audit.defect",
    "audit.masked_read",
    "recurrence.divergence",
    "speculation.acceptance",
    "stop.ignored",
    "repetition.loop",
    "tool_call.loop",
    "tool_call.runaway",
    "tool_call.malformed",
    "text.salad",
    "language.switch",
    "latency.slo",
    "drift",
)
"""Design rule 2: the earlier kind explains the later ones on the same sequence."""


def cause_rank(kind: str) -> int:
    """0 is the deepest cause; an unknown kind ranks last; `drift.<series>` ranks as `drift`."""
    name = "drift" if kind.startswith("drift.") else kind
    return CAUSE_ORDER.index(name) if name in CAUSE_ORDER else len(CAUSE_ORDER)


@dataclass(frozen=True, slots=True)
class Finding:
    """Numbers only: evidence never holds user text, so a finding may leave the process."""

    kind: str
    sequence: str
    severity: Severity
    step: int
    token: int
    """Index into the sequence's output tokens of the first bad token (0 is the first output token)."""
    guard: str
    version: int = 1
    evidence: Mapping[str, float | int | bool] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return cause_rank(self.kind)
