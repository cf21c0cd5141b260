"""What the judge says, and what stands behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

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

    @property
    def layer(self) -> int | None:
        """The first layer at fault."""
        return self.layers[0] if self.layers else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "kind": str(self.kind), "layer": self.layer}
