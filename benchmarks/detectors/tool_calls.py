"""Tool calls: families recognised at every split, loops told from work, what it costs."""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.replies import healthy
from checkengine.benchmarks.detectors.tokenizer import encode, tokenizer
from checkengine.benchmarks.detectors.tool_call_families import FAMILIES, runaways
from checkengine.benchmarks.detectors.tool_call_taxonomy import Case, taxonomy
from checkengine.benchmarks.figure import figure
from checkengine.detectors.tool_calls import ToolCallRecogniser
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Severity
from checkengine.guards.settings import ToolCallSettings
from checkengine.guards.step import StepView
from checkengine.guards.text import Conversation, TextStart
from checkengine.guards.text_tool_calls import TextToolCallGuard
from checkengine.guards.tool_calls import ToolCallGuard
from checkengine.guards.tool_loops import ToolLoopGuard

HELD_OUT_SEED = 20_261_130
"""Rules were made on other seeds, and none was changed on account of this one. The kinds are the same, though: what
the figure bounds is noise, not kinds of conversation that nobody thought of."""
TAU, WHO = "tau_bench_airline.json.gz", "who_and_when.json.gz"
BATCH, STEPS = 256, 256


def figures(options: DetectorOptions) -> list[dict[str, Any]]:
    quick = options.quick
    return [
        *family_figures(),
        *runaway_figures(),
        *taxonomy_figures(*((20, 10) if quick else (120, 60))),
        *tau_figures(options),
        *who_and_when_figures(options),
        *healthy_figures(options),
        *cost_figures(options),
    ]


def family_figures() -> list[dict[str, Any]]:
    """Each family whole, cut in two at every byte, and byte by byte."""
    known, splits, right = 0, 0, 0
    for text, calls in FAMILIES.values():
        data = text.encode() + b"\nDone."
        ways = [[data], [data[i : i + 1] for i in range(len(data))]]
        ways += [[data[:at], data[at:]] for at in range(1, len(data))]
        results = [_calls(pieces) == calls for pieces in ways]
        known += results[0]
        splits, right = splits + len(ways), right + sum(results)
    return [
        figure("tool_calls.families recognised", known, "families", 12, at_least=True),
        figure(f"tool_calls.splits right of {splits}", right / splits, "share", 1.0, at_least=True),
    ]


def _calls(pieces: Iterable[bytes]) -> list[tuple[str | None, Any]]:
    recogniser = ToolCallRecogniser()
    return [(call.name, call.arguments) for piece in pieces for call in recogniser.push(piece) if call.well_formed]


def runaway_figures() -> list[dict[str, Any]]:
    """The most repeats that any kind of runaway takes to be found."""
    needed = {name: next((n for n in range(1, 41) if _is_found(runaways(n)[name])), 99) for name in runaways(1)}
    worst = max(needed, key=lambda name: needed[name])
    return [figure("tool_calls.runaway found within", needed[worst], "repeats", 8, peer=(f"of {worst}", needed[worst]))]


def _is_found(text: str) -> bool:
    guard = TextToolCallGuard(TextStart("r"))
    return any(finding.severity >= Severity.WARNING for finding in guard.push(text))


def taxonomy_figures(loops: int, work: int) -> list[dict[str, Any]]:
    guard = ToolLoopGuard()
    cases = [(case, _alarms(guard, case.messages)) for case in taxonomy(HELD_OUT_SEED, loops=loops, work=work)]
    looping = [(case, found) for case, found in cases if case.loops]
    working = [(case, found) for case, found in cases if not case.loops]
    caught, false = sum(bool(found) for _, found in looping), sum(bool(found) for _, found in working)
    warned = sum(bool(_alarms(guard, case.messages, Severity.WARNING)) for case, _ in working)
    late = sum(_is_late(case, found) for case, found in looping)
    recalls = {kind: _recall(looping, kind) for kind in dict.fromkeys(case.kind for case, _ in looping)}
    worst = min(recalls, key=lambda kind: recalls[kind])
    return [
        figure(f"tool_calls.loops recall, {len(looping)} looping", caught / len(looping), "share", 0.95, at_least=True)
        | {"by_kind": recalls},
        figure(f"tool_calls.loops recall, worst kind: {worst}", recalls[worst], "share", 0.95, at_least=True),
        figure(
            f"tool_calls.loops precision, {len(cases)} in all", caught / (caught + false), "share", 0.98, at_least=True
        ),
        figure(f"tool_calls.false warnings of {len(working)} working", warned, "conversations", 0.02 * len(working)),
        figure("tool_calls.loops found later than promised", late, "conversations", 0),
    ]


def _recall(cases: Sequence[tuple[Case, list[int]]], kind: str) -> float:
    found = [bool(alarms) for case, alarms in cases if case.kind == kind]
    return sum(found) / len(found)


def _alarms(guard: ToolLoopGuard, messages: Sequence[Any], severity: Severity = Severity.ERROR) -> list[int]:
    """Message indices of the loops found."""
    found = guard.read(Conversation("c", tuple(messages)))
    return [int(f.at["message"]) for f in found if f.kind == "tool_call.loop" and f.severity >= severity]


def _is_late(case: Case, alarms: list[int]) -> bool:
    return case.alarm_by is not None and (not alarms or alarms[0] > case.alarm_by)


def tau_figures(options: DetectorOptions) -> list[dict[str, Any]]:
    """Runs that succeeded must not alarm; what fires on failed ones is told, and promises nothing."""
    runs = _load(options.data, TAU)
    if runs is None:
        return []
    guard = ToolLoopGuard()
    won = [run for run in runs if run["reward"] == 1]
    lost = [run for run in runs if run["reward"] != 1]
    count = [sum(bool(_alarms(guard, run["traj"], Severity.WARNING)) for run in some) for some in (won, lost)]
    return [
        figure(f"tool_calls.tau-bench alarms on {len(won)} won runs", count[0], "runs", 0),
        figure(f"tool_calls.tau-bench alarms on {len(lost)} lost runs (told)", count[1], "runs", len(lost)),
    ]


def who_and_when_figures(options: DetectorOptions) -> list[dict[str, Any]]:
    """Logs of agents that talk to each other; they hold hardly any call in a form that can be read."""
    logs = _load(options.data, WHO)
    if logs is None:
        return []
    guard = ToolLoopGuard()
    found = sum(bool(_alarms(guard, log["history"], Severity.WARNING)) for log in logs)
    return [figure(f"tool_calls.who-and-when alarms on {len(logs)} failed logs (told)", found, "logs", len(logs))]


def _load(data: Path | None, name: str) -> list[Any] | None:
    if data is None or not (data / name).is_file():
        print(f"bench detectors tool_calls: no {name} in the data folder; its figures are left out", file=sys.stderr)
        return None
    with gzip.open(data / name, "rt", encoding="utf-8") as file:
        found: list[Any] = json.load(file)
    return found


def healthy_figures(options: DetectorOptions) -> list[dict[str, Any]]:
    """Plain completions, and documentation of tool-call formats on this machine is not among them."""
    texts = [reply.completion for reply in healthy(options)][: 2000 if options.quick else None]
    if not texts:
        return []
    found = 0
    for text in texts:
        guard = TextToolCallGuard(TextStart("r"))
        found += any(f.severity >= Severity.WARNING for f in [*guard.push(text), *guard.end()])
    return [figure(f"tool_calls.alarms on {len(texts)} healthy replies", found, "replies", 0)]


@lru_cache(maxsize=1)
def _vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer())


def cost_figures(options: DetectorOptions) -> list[dict[str, Any]]:
    """CPU time; the rows write the sources of this package and, now and then, a call."""
    vocabulary = _vocabulary()
    pieces = [np.asarray(ids).tolist() for ids in encode(_mixed_text(BATCH))]
    rounds = 2 if options.quick else 5
    batched = statistics.median(_batched(vocabulary, pieces) for _ in range(rounds))
    texts = [[vocabulary.piece(token).decode(errors="replace") for token in row] for row in pieces[:32]]
    text = statistics.median(_streamed(texts) for _ in range(rounds))
    return [
        figure(f"tool_calls.cost, batch {BATCH}", batched, "ns/token", 300),
        figure("tool_calls.cost, text", text, "ns/token", 300),
    ]


def _mixed_text(rows: int) -> list[str]:
    source = Path(__file__).read_text(encoding="utf-8")
    prose = "The tide comes in twice a day, and the children build their castles higher. " * 20
    call = '\n<tool_call>\n{"name": "search", "arguments": {"query": "tides of the sea"}}\n</tool_call>\n'
    texts = []
    for row in range(rows):
        text = source[row * 30 : row * 30 + 1400] if row % 4 == 0 else prose[row % 70 :]
        texts.append(text[: row % 5 * 40] + call * (row % 8 == 0) + text[row % 5 * 40 :])
    return texts


def _batched(vocabulary: Vocabulary, pieces: Sequence[Sequence[int]]) -> float:
    guard = ToolCallGuard(ToolCallSettings(), vocabulary)
    names = tuple(f"sequence-{row}" for row in range(len(pieces)))
    lengths = np.zeros(len(pieces), np.int32)
    steps = []
    for step in range(min(STEPS, *map(len, pieces))):
        tokens = tuple((row[step],) for row in pieces)
        steps.append(StepView(step, 0.0, names, tokens, None, lengths, np.full(len(pieces), step, np.int32)))
    began = time.process_time_ns()
    for view in steps:
        guard.observe(view)
    return (time.process_time_ns() - began) / (len(steps) * len(pieces))


def _streamed(texts: Sequence[Sequence[str]]) -> float:
    guards = [TextToolCallGuard(TextStart("r")) for _ in texts]
    began = time.process_time_ns()
    for guard, pieces in zip(guards, texts, strict=True):
        push = guard.push
        for piece in pieces:
            push(piece)
    return (time.process_time_ns() - began) / sum(map(len, texts))
