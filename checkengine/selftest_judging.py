"""What becomes of one planted fault: does it act, who finds it, is it called by its name, is the place right?"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from checkengine.engine_shim.engine.batch import PackedBatch
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.kv_memory import KVMemory
from checkengine.engine_shim.faults import Fault, FaultClass, describe_fault
from checkengine.engine_shim.faults.masked_stop import MaskedStop
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.capture import Capture
from checkengine.replay.investigate import investigate
from checkengine.replay.judge.fills import layer_bits
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.playback import Bits, Playback
from checkengine.replay.record import StepRecord
from checkengine.replay.window import Window
from checkengine.replay.windows import build_window
from checkengine.selftest_cases import BY_GUARDS, Case, greedy_request
from checkengine.selftest_serving import Seen, every_row, run
from checkengine.selftest_truth import class_of, is_exact

logger = logging.getLogger("checkengine.selftest")

MOST_JUDGED = 3
"""Rows that the fault struck, judged until one is convicted."""
REPEATS = 20
"""Runs of a step before it is held to repeat."""
BEFORE = 6
"""Steps of the window before a strike on memory."""
PLANTED = "selftest.planted"

CONVICTIONS = (
    VerdictKind.CODE_DEFECT,
    VerdictKind.NAN_UNSAFE,
    VerdictKind.NONDETERMINISM,
    VerdictKind.STALE_KV,
    VerdictKind.TRANSIENT,
)
"""Verdicts that say what it is."""
OF_KIND: Mapping[VerdictKind, FaultClass] = {
    VerdictKind.NAN_UNSAFE: FaultClass.MASKED_READ,
    VerdictKind.NONDETERMINISM: FaultClass.NONDETERMINISM,
    VerdictKind.STALE_KV: FaultClass.STALE_KV,
    VerdictKind.TRANSIENT: FaultClass.STALE_KV,
}
"""Verdicts that are a class by themselves."""


class Outcome(StrEnum):
    NAMED = "named"
    MISNAMED = "misnamed"
    """Convicted, of something else."""
    ABSTAINED = "abstained"
    """"Inconclusive": only a tolerance could tell."""
    MISSED = "missed"
    RAISED = "raised"
    """The judge itself failed."""
    INERT = "inert"
    """It changed no bit in this load: nothing is proven."""


@dataclass(slots=True)
class Judged:
    case: Case
    outcome: Outcome
    called: str = ""
    """What the verdict calls it."""
    verdict: Verdict | None = None
    place: bool | None = None
    """Whether layer and slots are exactly the fault's; None where it has no one place, or was not convicted."""
    findings: list[str] = field(default_factory=list)
    """Kinds that guards found."""


def judge_case(case: Case, model: Any, tokenizer: Any) -> Judged:
    """`model` and `tokenizer` are of the case's family. A judge that fails on a case is an outcome too."""
    try:
        return _judge_case(case, model, tokenizer)
    except Exception as error:
        logger.exception("the judge failed on a planted %s", case.name)
        return Judged(case, Outcome.RAISED, f"{type(error).__name__}: {error}")


def _judge_case(case: Case, model: Any, tokenizer: Any) -> Judged:
    if case.fault_class is FaultClass.STALE_KV and not case.fault.in_code:
        return _struck(case, model, tokenizer)
    if isinstance(case.fault, MaskedStop):
        case = with_masked_stop(case, model, tokenizer)
    seen = run(model, tokenizer, case.requests, [case.fault], every_row, case.settings, dirty=case.dirty)
    acted = list(acting(case, seen))
    if case.fault_class in BY_GUARDS:
        return _by_guards(case, seen, bool(acted))
    if not acted:
        return Judged(case, Outcome.INERT)
    return _called(case, acted, seen)


def acting(case: Case, seen: Seen) -> Iterator[tuple[Capture, int]]:
    """Captures and handles whose row the fault changes, by running the step with and without it; at most
    MOST_JUDGED."""
    environment = seen.engine.environment()
    planted = EmbeddedExecutor.over(seen.engine.model, environment)
    clean = EmbeddedExecutor.over(seen.engine.model, {**environment, "faults": []})
    found = 0
    for capture in seen.captures:
        window = build_window(capture, first=capture.window.last_step)
        for handle in sorted(capture.involved & set(window.steps[-1].replay.record.handles.tolist())):
            if found < MOST_JUDGED and changes(window, handle, planted, clean):
                found += 1
                yield capture, handle


def changes(window: Window, handle: int, planted: EmbeddedExecutor, clean: EmbeddedExecutor) -> bool:
    """Bits of this row in the company that it had, on memory as it was or with NaN where nobody owns it."""
    step = window.steps[-1]
    row = int(np.flatnonzero(step.replay.record.handles == handle)[0])

    def bits(executor: EmbeddedExecutor, fill: float | None) -> Bits:
        return layer_bits(step, Playback(executor, window, fill=fill, hashes=True).run(step), row)

    return any(bits(planted, fill) != bits(clean, fill) for fill in (None, math.nan))


def verdicts_on(seen: Seen, rows: list[tuple[Capture, int]]) -> list[Verdict]:
    """Each row is investigated by itself, as an incident's is; until one is convicted."""
    executor = EmbeddedExecutor.over(seen.engine.model, seen.engine.environment())
    verdicts: list[Verdict] = []
    for capture, handle in rows:
        alone = capture.involved if capture.environment.get("all_rows") else frozenset({handle})
        one = replace(capture, involved=alone, findings=(finding_on(capture, handle),))
        found = investigate(one, executor, None, judge=Judge(executor, repeats=REPEATS)).verdict
        assert found is not None
        verdicts.append(found)
        if found.kind in CONVICTIONS:
            break
    return verdicts


def finding_on(capture: Capture, handle: int) -> Finding:
    """As if a guard had raised one: the judge then makes every test that it has."""
    name = capture.window.starts[handle].name
    return Finding(PLANTED, name, Severity.WARNING, capture.window.last_step, 0, "selftest")


def _called(case: Case, rows: list[tuple[Capture, int]], seen: Seen) -> Judged:
    verdicts = verdicts_on(seen, rows)
    findings = kinds(seen)
    verdict = next((each for each in verdicts if each.kind in CONVICTIONS), None)
    if verdict is None:
        unsure = any(each.kind is VerdictKind.INCONCLUSIVE for each in verdicts)
        outcome = Outcome.ABSTAINED if unsure else Outcome.MISSED
        return Judged(case, outcome, "", verdicts[-1] if verdicts else None, findings=findings)
    told = verdict.fault_class or OF_KIND.get(verdict.kind)
    called = "" if told is None else str(told)
    struck = rows[verdicts.index(verdict)]
    right = called == class_of(case, *struck)
    place = is_exact(case, verdict, *struck)
    return Judged(case, Outcome.NAMED if right else Outcome.MISNAMED, called, verdict, place, findings)


def _by_guards(case: Case, seen: Seen, acted: bool) -> Judged:
    findings = kinds(seen)
    named = any(kind.startswith("sampler.") for kind in findings)
    outcome = Outcome.NAMED if named else Outcome.MISSED if acted else Outcome.INERT
    return Judged(case, outcome, "sampler" if named else ", ".join(findings), findings=findings)


def _struck(case: Case, model: Any, tokenizer: Any) -> Judged:
    """Memory was changed from outside of the steps: the window around it is judged as an incident is."""
    watched = Watched(case.fault)

    def wanted(record: StepRecord) -> tuple[list[int], int] | None:
        if watched.struck is None or record.step != watched.struck[0]:
            return None
        return record.handles.tolist(), watched.struck[0] - BEFORE

    seen = run(model, tokenizer, case.requests, [watched], wanted, case.settings, dirty=case.dirty)
    if not seen.captures or watched.struck is None:
        return Judged(case, Outcome.INERT)
    capture = seen.captures[0]
    finding = finding_on(capture, watched.struck[1])
    executor = EmbeddedExecutor.over(seen.engine.model, seen.engine.environment())
    one = replace(capture, involved=frozenset({watched.struck[1]}), findings=(finding,))
    verdict = investigate(one, executor, None).verdict
    assert verdict is not None
    named = verdict.kind in (VerdictKind.STALE_KV, VerdictKind.TRANSIENT)
    wrong = Outcome.ABSTAINED if verdict.kind is VerdictKind.INCONCLUSIVE else Outcome.MISNAMED
    return Judged(case, Outcome.NAMED if named else wrong, str(verdict.kind), verdict, findings=kinds(seen))


class Watched(Fault):
    """A fault on live memory, and the first step and sequence that it struck: a sequence that decodes in that step and
    owned, before it, a slot whose bytes changed."""

    in_code = False

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.name, self.fault_class = fault.name, fault.fault_class  # type: ignore[misc]
        self.struck: tuple[int, int] | None = None

    def strikes(self, batch: PackedBatch, memory: KVMemory) -> None:
        before = {name: tensor.clone() for name, tensor in memory.tensors.items()}
        self.fault.strikes(batch, memory)
        if self.struck is not None:
            return
        changed = np.zeros((memory.blocks, memory.block_size), np.bool_)
        for name, tensor in memory.tensors.items():
            differs = tensor.view(torch.int32) != before[name].view(torch.int32)
            changed |= differs.flatten(3).any(3).any(1).numpy()
        for row in np.flatnonzero(batch.query_lengths == 1):
            at = np.arange(batch.starts[row])
            if changed[batch.tables[row, at // batch.block_size], at % batch.block_size].any():
                self.struck = batch.step, int(batch.handles[row])
                return


def with_masked_stop(case: Case, model: Any, tokenizer: Any) -> Case:
    """The clean run tells which token comes when; one of them is then an end token that the engine masks."""
    tokens = run(model, tokenizer, case.requests, wanted=lambda record: None).tokens
    index = next(i for i in range(3, len(tokens), 3) if tokens[i] not in tokens[:i])
    return replace(case, fault=MaskedStop([tokens[1]]), requests=[greedy_request((tokens[index],))])


def kinds(seen: Seen) -> list[str]:
    return sorted({finding.kind for finding in seen.findings})


def describe(case: Case) -> str:
    """The fault and its parameters, on one line."""
    spec = describe_fault(case.fault)
    return str(spec.pop("name")) + (" " + ", ".join(f"{key}={value}" for key, value in spec.items()) if spec else "")
