"""What the judge says, and what stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from checkengine.replay.judge.fault_class import FaultClass, Persistence

Number = float | int | bool


class VerdictKind(StrEnum):
    CODE_DEFECT = "code defect"
    NAN_UNSAFE = "NaN-unsafe masked read"
    BATCH_NUMERICS = "batch numerics"
    NONDETERMINISM = "run-to-run nondeterminism"
    STALE_KV = "stale or overwritten KV"
    WEIGHTS_CHANGED = "weights changed"
    DEVICE_SPECIFIC = "device-specific"
    TRANSIENT = "transient"
    INCONCLUSIVE = "inconclusive"
    NO_FAULT = "no fault found"
    """Of an audit only: nothing was reported, and the tests found nothing."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test; `passed` is False where it found something wrong and None where it could not be run."""

    __test__ = False  # pytest would collect it by its name

    name: str
    passed: bool | None
    detail: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    rules_out: str = ""
    """What this outcome excludes, in words; empty where it excludes nothing."""


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """A physical slot that was read without right, and where it lies as the reading sequence sees it."""

    slot: int
    block: int
    position: int | None
    """Position in the reading sequence's own table; None where the slot lies in none of its blocks."""
    words: str


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: VerdictKind
    sentence: str
    tests: tuple[TestResult, ...] = ()
    layers: tuple[int, ...] = ()
    slots: tuple[SlotPlace, ...] = ()
    sequence: str | None = None
    step: int | None = None
    replays_used: int = 0
    """Runs of one step or more."""
    fault_class: FaultClass | None = None
    op: str | None = None
    """The first op at fault, as the executor names it."""
    heads: tuple[int, ...] = ()
    """Query heads at fault in `layer`; empty where that was not told apart, or all are."""
    position: int | None = None
    """Position in the sequence of the first token whose output is wrong."""
    parts: tuple[str, ...] = ()
    """Of the slots: what was read without right, "key", "value" or another tensor of the cache."""

    @property
    def persistence(self) -> Persistence | None:
        """None where the verdict tells of no fault, or of one that comes and goes."""
        return PERSISTENCE.get(self.kind)

    @property
    def layer(self) -> int | None:
        """The first layer at fault."""
        return self.layers[0] if self.layers else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **asdict(self),
            "kind": str(self.kind),
            "layer": self.layer,
            "fault_class": self.fault_class and str(self.fault_class),
            "persistence": self.persistence and str(self.persistence),
        }


PERSISTENCE: Mapping[VerdictKind, Persistence] = {
    VerdictKind.CODE_DEFECT: Persistence.DETERMINISTIC,
    VerdictKind.NAN_UNSAFE: Persistence.DETERMINISTIC,
    VerdictKind.STALE_KV: Persistence.PERSISTENT,
    VerdictKind.WEIGHTS_CHANGED: Persistence.PERSISTENT,
    VerdictKind.DEVICE_SPECIFIC: Persistence.PERSISTENT,
    VerdictKind.TRANSIENT: Persistence.TRANSIENT,
}
