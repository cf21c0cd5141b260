"""Verdicts of the tests that look at what goes into a kernel and at what must not matter to it."""

from __future__ import annotations

from checkengine.replay.judge.calls import try_calls
from checkengine.replay.judge.case import Case, Convicting
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.inputs import WrongInput
from checkengine.replay.judge.invariance import Difference
from checkengine.replay.judge.kept import KeptOutcome
from checkengine.replay.judge.repeat import Repeats, run_first
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.localise import place_of
from checkengine.replay.localise.whole import MOST_SLOTS
from checkengine.replay.window import Window, WindowStep

INPUTS = "inputs of attention"


def convicting(case: Case, step: WindowStep, repeats: Repeats) -> None:
    """`step` may be of a changed window: the gate repeats the step as it was recorded."""
    index = next(i for i, own in enumerate(case.bench.window.steps) if own.number == step.number)
    case.convicting = Convicting(case.bench.window.steps[index], None, repeats.bits[index])


def fed_wrong(case: Case, wrong: WrongInput, repeats: Repeats) -> Verdict:
    convicting(case, wrong.step, repeats)
    window = case.bench.window
    slots = () if wrong.slot is None else (place_of(window, wrong.step, wrong.row, wrong.slot),)
    position = int(wrong.step.replay.record.starts[wrong.row]) + wrong.token
    sentence = (
        f"the {wrong.what} of position {position:,} in layer {wrong.layer}, step {wrong.step.number}, is not what the "
        f"layer's hidden state gives: {wrong.words}"
    )
    return case.verdict(
        VerdictKind.CODE_DEFECT,
        sentence,
        wrong.fault_class,
        step=wrong.step,
        row=wrong.row,
        layers=(wrong.layer,),
        slots=slots,
        op=INPUTS,
        heads=wrong.heads if wrong.what == "query" else (),
        position=position,
        parts=() if wrong.what == "query" else (wrong.what,),
    )


def uneven(case: Case, found: Difference, repeats: Repeats) -> Verdict:
    step, what = found
    convicting(case, step, repeats)
    sentence = (
        f"rows of the batch are mixed up or reach into each other: with other neighbours in equal shape step "
        f"{step.number} gives other bits, first {what}"
    )
    return case.verdict(VerdictKind.CODE_DEFECT, sentence, FaultClass.ROWS, step=step)


def misplaced(case: Case, found: Difference, repeats: Repeats) -> Verdict:
    step, what = found
    convicting(case, step, repeats)
    sentence = (
        f"results depend on where in memory the sequence's pages lie: with its pages in other places step "
        f"{step.number} gives other bits, first {what}"
    )
    return case.verdict(VerdictKind.CODE_DEFECT, sentence, FaultClass.PLACEMENT, step=step)


def in_company(case: Case, window: Window) -> Verdict:
    """`window`: all rows as they were, in which the record's bits come again, as they do not among stand-ins."""
    bench = Bench(case.bench.executor, window, case.bench.replays)
    case.bench = bench
    repeats = run_first(bench, None)
    calls = try_calls(bench)
    if calls is not None:
        case.add(calls.result())
        if calls.beyond is not None:
            return case.beyond(calls.beyond, repeats)
    step = next(step for step in window.steps if step.involved.any())
    convicting(case, step, repeats)
    sentence = (
        f"the row's bits depend on the rows beside it: from step {step.number} on the record comes again with every "
        "row as it was, and not among others of equal shape"
    )
    return case.verdict(VerdictKind.CODE_DEFECT, sentence, FaultClass.ROWS, step=step)


def overwritten(case: Case, kept: KeptOutcome) -> Verdict:
    window = case.bench.window
    step = next((step for step in window.steps if step.number == (kept.since or kept.first)), window.steps[-1])
    rows = [row for row in range(len(step.involved)) if step.involved[row]]
    slots = tuple(place_of(window, step, rows[0], int(slot)) for slot in kept.changed[:MOST_SLOTS]) if rows else ()
    since = "after the window's last step" if kept.since is None else f"before step {kept.since}"
    sentence = f"memory of the sequence changed {since}, and no step of the sequence wrote it"
    sentence += f": {slots[0].words}" if slots else "; it was written before the window began"
    row = rows[0] if rows else None
    return case.verdict(VerdictKind.STALE_KV, sentence, FaultClass.STALE_KV, step=step, row=row, slots=slots)
