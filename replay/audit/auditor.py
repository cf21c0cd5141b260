"""Judges one step in memory, off the serving path.

A kernel that reads a stale slot can leave the text fluent; no guard on outputs sees it. The fills do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from checkengine.guards.events import AuditJudged
from checkengine.replay.audit.screen import Screened, screen, served_prints
from checkengine.replay.capture import Capture
from checkengine.replay.executor import Executor
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.playback import Playback
from checkengine.replay.windows import build_window, window_of_all_rows

logger = logging.getLogger("checkengine.audit")

NO_PRINTS: Mapping[int, int] = MappingProxyType({})


@dataclass(slots=True)
class Auditor:
    """Screens the last step of a capture with one run or two, and judges row by row what the screen does not clear."""

    executor: Executor
    repeats: int = 2
    seed: int | None = None
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def audit(self, capture: Capture, prints: Mapping[int, int] = NO_PRINTS) -> Verdict:
        """The first verdict that tells of a fault, else the screen's. Raises CannotReplayError where the step cannot
        be run. Nothing is written; the capture may be dropped afterwards.

        `prints`: by handle, fingerprints of the served logits, where the record holds none."""
        step = capture.window.last_step
        present = capture.involved & set(capture.window.records[-1].handles.tolist())
        if not present:
            return Verdict(VerdictKind.INCONCLUSIVE, "no involved row took part in the audited step", step=step)
        screened = screen(self.executor, capture, present, self._random, prints)
        if screened.quiet:
            return cleared(screened, step)
        try:
            return self._judge(capture, present, screened, prints)
        except Exception as error:
            # What the screen saw is not lost with the judge.
            logger.exception("the judge failed on an audited step")
            sentence = f"the bits of the serving run do not come again, and the judge failed: {type(error).__name__}"
            return Verdict(VerdictKind.INCONCLUSIVE, sentence, (screened.result(),), step=step)

    def _judge(
        self, capture: Capture, present: frozenset[int], screened: Screened, prints: Mapping[int, int]
    ) -> Verdict:
        """Each row by itself: all other memory counts as unowned. A mixture of experts needs all rows as they were;
        then they are judged together."""
        step = capture.window.last_step
        together = bool(capture.environment.get("all_rows"))
        for rows in [capture.involved] if together else [frozenset({handle}) for handle in sorted(present)]:
            window = build_window(capture, involved=rows, first=step, last=step)
            verdict = Judge(self.executor, repeats=self.repeats).judge(window)
            if verdict.kind is not VerdictKind.NO_FAULT:
                return verdict
        return not_again(screened, step, came_once(self.executor, capture, prints))


def cleared(screened: Screened, step: int) -> Verdict:
    sentence = (
        f"{screened.rows} rows give the {screened.against} bits while all memory that they do not own is refilled"
    )
    return Verdict(VerdictKind.NO_FAULT, sentence, (screened.result(),), step=step, replays_used=screened.replays)


def came_once(executor: Executor, capture: Capture, prints: Mapping[int, int]) -> bool | None:
    """Whether the served bits of all rows together do not come again either, on memory as it was; None where not every
    row that ran can be run as it was."""
    step = capture.window.last_step
    window = window_of_all_rows(capture, step, step)
    served = None if window is None else served_prints(window.steps[0], prints)
    if window is None or served is None or window.exact_from != "undo":
        return None
    found = Playback(executor, window).run(window.steps[0]).stats.fingerprint
    return found is not None and found.tolist() != served


def not_again(screened: Screened, step: int, once: bool | None) -> Verdict:
    """The screen saw other bits, and every row by itself repeats and reads only its own memory."""
    sentence = "the bits of the serving run do not come again, while replays repeat and read only memory they own"
    kind = VerdictKind.TRANSIENT if once else VerdictKind.INCONCLUSIVE
    if not once:
        sentence += "; it came once, or the rows that ran beside these decide it"
    return Verdict(kind, sentence, (screened.result(),), step=step, replays_used=screened.replays)


def audit_event(verdict: Verdict, capture: Capture, time: float, incident: str | None = None) -> AuditJudged:
    sequence = verdict.sequence or ""
    return AuditJudged(incident, sequence, capture.window.last_step, str(verdict.kind), time)
