"""A whole investigation of one capture: replay, re-fire, reference, verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from checkengine.guards.finding import Finding
from checkengine.replay.capture import Capture
from checkengine.replay.executor import Executor
from checkengine.replay.judge.gate import Gate
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import TestResult, Verdict, VerdictKind
from checkengine.replay.refire import GuardsFactory, fires
from checkengine.replay.replayer import Progress, Replay, Replayer
from checkengine.replay.window import Window
from checkengine.replay.windows import build_window, window_of_all_rows

REPRODUCED, NOT_REPRODUCED, CANNOT_JUDGE, USAGE = 1, 0, 125, 129
"""Exit codes that `git bisect run` understands."""

AUDIT = ("audit.defect", "audit.masked_read")
"""Kind of a finding that no guard raised: the judge convicted a sampled step."""

DEFECTS = (VerdictKind.CODE_DEFECT, VerdictKind.NAN_UNSAFE)


@dataclass(slots=True)
class Investigation:
    """What is known in the end. `forced` follows the record; `reproduced` is None where no guard could tell."""

    bundle: str
    findings: tuple[Finding, ...]
    environment: Mapping[str, Any]
    forced: Replay | None = None
    finding: Finding | None = None
    """The recorded finding that fired again, else the first recorded one."""
    reproduced: bool | None = None
    reference: Replay | None = None
    reference_fires: bool | None = None
    verdict: Verdict | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        if self.reproduced is not None:
            return REPRODUCED if self.reproduced else NOT_REPRODUCED
        if self.verdict is None or self.findings:
            return CANNOT_JUDGE
        if self.verdict.kind in DEFECTS:
            return REPRODUCED
        return NOT_REPRODUCED if self.verdict.kind is VerdictKind.NO_FAULT else CANNOT_JUDGE

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        nothing = {"bit_exact": False, "from_step": None, "steps": 0, "rows": 0, "equal_rows": 0}
        nothing |= {"first_difference": None, "exact_from": None, "compared": None}
        told = {
            "bundle": self.bundle,
            **(self.forced.to_dict() if self.forced else nothing),
            "kernel": self.forced.kernel if self.forced else None,
            "reproduced": self.reproduced,
            "finding": finding_json(self.finding),
            "reference": {
                "kernel": self.reference.kernel if self.reference else None,
                "finding_fires": self.reference_fires,
            },
            "verdict": self.verdict.to_dict() if self.verdict else None,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }
        return {key: jsonable(value) for key, value in told.items()}


def jsonable(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def finding_json(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None:
        return None
    fields = ("kind", "sequence", "step", "token", "guard", "version")
    return {name: getattr(finding, name) for name in fields} | {
        "severity": int(finding.severity),
        "evidence": dict(finding.evidence),
    }


def investigate(
    capture: Capture,
    executor: Executor,
    guards: GuardsFactory | None,
    *,
    bundle: str = "",
    kernel: str | None = None,
    judge: Judge | None = None,
    gate: Gate | None = None,
    weights: bool = False,
    progress: Progress | None = None,
) -> Investigation:
    """Replay with the recorded kernel (or `kernel`), then with the reference kernel, then judge. `gate`: what repeats a
    convicting step in fresh processes; `weights`: the executor compared the weights' digest with the record's.

    Raises CannotReplayError where there is nothing to replay.
    """
    began = time.monotonic()
    found = Investigation(bundle, capture.findings, capture.environment)
    found.finding = capture.findings[0] if capture.findings else None
    replayer = Replayer(executor, capture, guards)
    changed = executor.changed(capture.environment)
    found.notes += [f"not as recorded: {difference}" for difference in changed]
    found.forced = replayer.replay(kernel, hashes=kernel is None, progress=progress)
    refire(found, replayer, kernel, progress)
    if kernel is None:
        try_reference(found, replayer, progress)
        known = weights_known(capture) if weights else ()
        window = suspect_window(capture, found.finding, replayer.window)
        judge = judge or Judge(executor, guards, changed=changed, gate=gate, known=known)
        if judge.window_at is None:
            own = frozenset(window.starts)
            judge = replace(judge, window_at=lambda step: build_window(capture, involved=own, first=step, last=step))
        if judge.everybody is None:
            first, last = window.steps[0].number, window.steps[-1].number
            judge = replace(judge, everybody=lambda: window_of_all_rows(capture, first, last))
        found.verdict = judge.judge(window, found.finding, found.forced, found.reference, found.reference_fires)
        confirm_audit(found)
    found.seconds = time.monotonic() - began
    return found


def weights_known(capture: Capture) -> tuple[TestResult, ...]:
    digest = capture.environment.get("weights_digest")
    if digest is None:
        return (TestResult("weights", None, "the record names no digest of its weights"),)
    return (TestResult("weights", True, f"the weights here have the record's digest, {str(digest)[:12]}…"),)


def refire(found: Investigation, replayer: Replayer, kernel: str | None, progress: Progress | None) -> None:
    """Does a recorded finding fire again, on the replay's own tokens where they are not the record's?"""
    if replayer.guards is None or not found.findings or found.forced is None:
        found.notes.append("whether the finding fires again was not looked at: no finding, or no guards")
        return
    replay = found.forced
    if replay.first_difference is not None:
        replay = replayer.replay(kernel, free=True, progress=progress)
    again = replayer.reproduced(replay)
    found.reproduced = again is not None
    found.finding = again or found.finding
    if again is None and any(fires(finding, replay.fired_before) for finding in found.findings):
        found.reproduced = None
        found.notes.append("the finding fires on tokens from before the window: capture more steps to judge it")


def confirm_audit(found: Investigation) -> None:
    """An audit's finding comes from the judge, not from a guard: it fires again where the judge convicts again."""
    if found.verdict is None or not found.findings or any(f.kind not in AUDIT for f in found.findings):
        return
    found.reproduced = found.verdict.kind in DEFECTS
    found.reference_fires = None


def try_reference(found: Investigation, replayer: Replayer, progress: Progress | None) -> None:
    found.reference = replayer.replay(replayer.executor.reference, free=True, progress=progress)
    if found.finding is not None and replayer.guards is not None:
        found.reference_fires = fires(found.finding, found.reference.findings)


def suspect_window(capture: Capture, finding: Finding | None, whole: Window) -> Window:
    """The window with the finding's own rows only, so that every other sequence's memory counts as unowned; all rows
    where the model mixes them."""
    if finding is None or capture.environment.get("all_rows"):
        return whole
    own = {handle for handle, start in whole.starts.items() if start.name == finding.sequence}
    if not own or own == set(whole.starts):
        return whole
    return build_window(capture, involved=own, first=whole.steps[0].number, last=whole.steps[-1].number)
