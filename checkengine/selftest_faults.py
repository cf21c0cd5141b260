"""Planted faults on tiny random models: does whoever should find each of them, by its name, and nothing where there is
none?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.faults import FAULTS, FaultClass
from checkengine.engine_shim.faults.blind import BLIND_FAULTS
from checkengine.engine_shim.faults.fresh import FRESH_FAULTS
from checkengine.figures import Figure
from checkengine.guards.errors import UserError
from checkengine.replay.judge.judge import Judge
from checkengine.replay.windows import build_window
from checkengine.selftest_cases import BLOCK, UNDECIDABLE, Case, case_of, sampled_requests
from checkengine.selftest_judging import CONVICTIONS, Judged, Outcome, describe, judge_case
from checkengine.selftest_motion import MOTION_CLASSES
from checkengine.selftest_serving import Seen, run
from checkengine.tiny import tiny_model, tiny_tokenizer

QUICK = (
    "nan_attention",
    "over_read",
    "over_read_values",
    "masked_over_read",
    "skipped_slot",
    "window_too_wide",
    "padding_entry",
    "neighbours_page",
    "position_shift",
    "scale_page",
    "swapped_heads",
    "half_written",
    "swapped_rows",
    "split_k_race",
    "late_transfer",
    "masked_stop",
    "approximate_top_k",
    "token_shift",
)
"""At least one fault of each class."""
GUARDS_SEE: Mapping[FaultClass, str] = {
    FaultClass.NON_FINITE: "logits.nonfinite",
    FaultClass.SAMPLER: "sampler.",
    FaultClass.STOP: "stop.",
}
"""How the finding's kind begins that guards must have raised while serving."""
CLEAN_STEPS = 12


def fault_figures(names: Iterable[str] = QUICK) -> list[Figure]:
    """The clean run, then a figure for each fault."""
    return [*clean_figures(), *(figure_of(judged(case_of(name))) for name in names)]


def names_of(chosen: str) -> tuple[str, ...]:
    """All faults of a class, by its name or its words, or the one fault of that name. Raises UserError."""
    known = {**FAULTS, **BLIND_FAULTS, **FRESH_FAULTS}
    found = [name for name, fault in known.items() if chosen in (str(fault.fault_class), fault.fault_class.name, name)]
    if not found:
        classes = ", ".join([*sorted({str(fault.fault_class) for fault in known.values()}), *MOTION_CLASSES])
        raise UserError(f"there is no class and no fault {chosen!r}; the classes are {classes}")
    return tuple(found)


def judged(case: Case) -> Judged:
    return judge_case(case, model_of(case.family), words())


@cache
def model_of(family: str) -> Any:
    return tiny_model(family)


@cache
def words() -> Any:
    return tiny_tokenizer()


def figure_of(found: Judged) -> Figure:
    """1 where the fault was missed, or convicted of something else; abstaining is right where nothing exact decides."""
    case = found.case
    wrong = not is_right(found) or bool(unseen(found))
    figure = _figure(f"planted {case.name} ({case.fault_class})", int(wrong), "wrong")
    reason = UNDECIDABLE.get(case.name)
    more = {"outcome": str(found.outcome), "called": found.called, "fault": describe(case), "guards": found.findings}
    return {**figure, **more, **({"reason": reason} if reason else {}), "unseen_by": unseen(found)}


def is_right(found: Judged) -> bool:
    """Called by its name; or, where only a tolerance could decide, not called anything."""
    if found.outcome is Outcome.NAMED:
        return True
    return found.case.name in UNDECIDABLE and found.outcome in (Outcome.ABSTAINED, Outcome.MISSED)


def unseen(found: Judged) -> list[str]:
    """Guards that should have raised a finding and did not."""
    wanted = GUARDS_SEE.get(found.case.fault_class)
    return [wanted] if wanted and not any(kind.startswith(wanted) for kind in found.findings) else []


def clean_figures() -> list[Figure]:
    clean = run(model_of("llama"), words(), sampled_requests())
    return [
        _figure("findings on a clean run", len(clean.findings), "findings"),
        _figure("steps of a clean run that were convicted", convicted(clean), f"of {CLEAN_STEPS}"),
    ]


def convicted(seen: Seen) -> int:
    """How many of the last captures the judge convicts."""
    judge = Judge(EmbeddedExecutor.over(seen.engine.model, seen.engine.environment()))
    steps = seen.captures[-CLEAN_STEPS:]
    return sum(
        judge.judge(build_window(capture, first=capture.window.last_step)).kind in CONVICTIONS for capture in steps
    )


def _figure(name: str, value: float, unit: str) -> Figure:
    return {"name": name, "value": value, "unit": unit, "target": 0, "ok": value <= 0}


__all__ = ["BLOCK", "fault_figures", "run", "sampled_requests", "tiny_model", "tiny_tokenizer"]
