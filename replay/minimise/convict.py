"""A verdict to begin with: the step of a finding by itself first, the whole window where that tells nothing."""

from __future__ import annotations

from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError, Executor
from checkengine.replay.investigate import suspect_window
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.window import Window
from checkengine.replay.windows import build_window

CONVICTIONS = (VerdictKind.CODE_DEFECT, VerdictKind.NAN_UNSAFE)


def convict(capture: Capture, executor: Executor) -> Verdict:
    """The judge's verdict on the capture. CannotReplayError where nothing can be run."""
    finding = capture.findings[0] if capture.findings else None
    judge = Judge(executor, changed=executor.changed(capture.environment))
    for window in single_steps(capture):
        verdict = judge.judge(window)
        if verdict.kind in CONVICTIONS:
            return verdict
    window = build_window(capture)
    return judge.judge(suspect_window(capture, finding, window), finding)


def single_steps(capture: Capture) -> list[Window]:
    """The findings' own steps, each for its own sequence, and the last step; where memory before them is known."""
    exact = capture.first_exact_step
    names = {finding.sequence for finding in capture.findings}
    steps = [*(finding.step for finding in capture.findings), capture.window.last_step]
    starts = capture.window.starts
    own = {handle for handle in capture.involved if not names or starts[handle].name in names}
    involved = capture.involved if capture.environment.get("all_rows") else own or capture.involved
    found = []
    for step in dict.fromkeys(steps):
        if exact is None or not exact <= step <= capture.window.last_step:
            continue
        try:
            found.append(build_window(capture, involved=involved, first=step, last=step))
        except CannotReplayError:
            continue  # The whole window will say why, if it is no better.
    return found
