"""What one drill showed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from checkengine.drills.compare import Difference


@dataclass(slots=True)
class Outcome:
    """Token numbers count the victim's output tokens from 0."""

    name: str
    title: str
    story: str
    victim: str
    models: list[str] = field(default_factory=list)
    """Public bugs that the fault is modelled on."""
    first_bad_token: int | None = None
    """First token that differs from the undisturbed run; for the quiet fault, first logits that differ."""
    caught_after_tokens: int | None = None
    """0: in the very step of the first bad token."""
    stopped_after_tokens: int | None = None
    stopped: bool = False
    finish: str | None = None
    tokens: int = 0
    unguarded_tokens: int = 0
    tokens_saved: int = 0
    unguarded_text: str = ""
    unguarded_repeats: int = 0
    """How often the unguarded run's last token stands at its end."""
    guarded_text: str = ""
    neighbours_equal: bool = False
    near_ties: list[Difference] = field(default_factory=list)
    """Neighbours' differences where the undisturbed run's top two logits were less than 1e-3 apart (rule 10)."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    incident: str | None = None
    bundle: str | None = None
    replay: dict[str, Any] | None = None
    verdict: str | None = None
    verdict_kind: str | None = None
    layers: list[int] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Caught, judged a code defect, reproduced bit for bit, and nobody else touched."""
        replay = self.replay or {}
        judged = self.verdict_kind == "code defect" and bool(replay.get("bit_exact"))
        return self.caught_after_tokens is not None and judged and self.neighbours_equal

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Clean:
    requests: int = 0
    findings: int = 0
    tokens: int = 0
    tokens_per_s_bare: float = 0.0
    tokens_per_s_guarded: float = 0.0
    overhead: float = 0.0
    """Of the medians of interleaved runs: 1 - guarded / bare. Below 0 is noise of the machine."""
    cpu_overhead: float = 0.0
    """CPU seconds of guards and recorder in the engine's thread, over the guarded runs' seconds."""
    equal: bool = False
    """The guarded runs' tokens equal the bare ones'."""


@dataclass(slots=True)
class DemoResult:
    clean: Clean
    drills: list[Outcome]
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        clean = self.clean.findings == 0 and self.clean.equal
        return clean and all(drill.passed for drill in self.drills)

    def to_dict(self) -> dict[str, Any]:
        drills = [drill.to_dict() for drill in self.drills]
        return {"clean": asdict(self.clean), "drills": drills, "seconds": self.seconds, "passed": self.passed}
