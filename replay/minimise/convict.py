"""A verdict to begin with: the step of a finding by itself first, the whole window where that tells nothing."""

from __future__ import annotations

from collections.abc import Iterator

from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError, Executor
from checkengine.replay.investigate import suspect_window
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.window import Window
from checkengine.replay.windows import build_window

CONVICTIONS = (VerdictKind.CODE_DEFECT, VerdictKind.NAN_UNSAFE)


def convict(capture: Capture, executor: Executor, *, whole_window: bool = True) -> Verdict:
    """The judge's verdict on the capture. CannotReplayError where nothing can be run. Without `whole_window` only the
    findings' own steps are judged, some runs of one step each, and where they convict nobody that is the verdict."""
    finding = capture.findings[0] if capture.findings else None
    judge = Judge(executor, changed=executor.changed(capture.environment))
    for window in single_steps(capture):
        verdict = judge.judge(window)
        if verdict.kind in CONVICTIONS:
            return verdict
    if not whole_window:
        return Verdict(VerdictKind.INCONCLUSIVE, "the findings' own steps, each by itself, convict no kernel")
    window = build_window(capture)
    return judge.judge(suspect_window(capture, finding, window), finding)


def single_steps(capture: Capture) -> Iterator[Window]:
    """The findings' own steps and the last one, of each sequence by itself: all other memory counts as unowned. Only
    where memory before the step is known."""
    exact = capture.first_exact_step
    steps = [*(finding.step for finding in capture.findings), capture.window.last_step]
    for step in dict.fromkeys(steps):
        if exact is None or not exact <= step <= capture.window.last_step:
            continue
        for involved in suspects(capture, step):
            try:
                yield build_window(capture, involved=involved, first=step, last=step)
            except CannotReplayError:
                continue  # The whole window will say why, if it is no better.


def suspects(capture: Capture, step: int) -> list[frozenset[int]]:
    """Handles to judge together: a mixture of experts needs all rows as they were, else each is judged alone."""
    if capture.environment.get("all_rows"):
        return [capture.involved]
    record = next((record for record in capture.window.records if record.step == step), None)
    ran = set() if record is None else set(record.handles.tolist())
    names = {finding.sequence for finding in capture.findings}
    starts = capture.window.starts
    own = [handle for handle in sorted(capture.involved & ran) if not names or starts[handle].name in names]
    return [frozenset({handle}) for handle in own]
