"""Every planted fault, the author's and those written blind; made-up calls; rounding; what comes again and what does
not; clean replays. On two quiet cores about 20 minutes: no part takes more than ten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from checkengine.benchmarks.corpus_calls import call_figures
from checkengine.benchmarks.corpus_clean import QUICK_WINDOWS, WINDOWS, clean_replay_figures
from checkengine.benchmarks.corpus_numerics import numerics_figures
from checkengine.benchmarks.corpus_persistence import persistence_figures
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.op_hashes import op_hash_figures
from checkengine.benchmarks.pooled import pooled
from checkengine.engine_shim.faults import FAULTS
from checkengine.engine_shim.faults.blind import BLIND_FAULTS
from checkengine.engine_shim.faults.fresh import FRESH_FAULTS
from checkengine.selftest_cases import case_of
from checkengine.selftest_faults import judged
from checkengine.selftest_judging import Judged, Outcome

MOST_SECONDS = 600.0
NAMED, PLACED = 95.0, 95.0
"""Percent."""
TOLD = (Outcome.MISNAMED, Outcome.RAISED)


def corpus_figures(*, quick: bool = False) -> Iterator[dict[str, Any]]:
    """The quick parts first; each figure as soon as it is there."""
    yield from call_figures(quick=quick)
    sets = {"own": (FAULTS, 6), "blind": (BLIND_FAULTS, 8), "fresh": (FRESH_FAULTS, 5)}
    for whose, (faults, every) in sets.items():
        names = list(faults)[:: every if quick else 1]
        yield from figures_of(whose, list(pooled(judged_fault, names, MOST_SECONDS, processes=1 if quick else None)))
    yield from op_hash_figures(quick=quick)
    yield from numerics_figures(quick=quick)
    yield from persistence_figures(quick=quick)
    yield from clean_replay_figures(QUICK_WINDOWS if quick else WINDOWS, processes=1 if quick else None)


def judged_fault(name: str) -> Judged:
    """Without what no figure shows: it came through a pipe."""
    return replace(judged(case_of(name)), verdict=None)


def figures_of(whose: str, found: Sequence[Judged]) -> list[dict[str, Any]]:
    """Class and place, with each fault that was not right by name; faults that did nothing prove nothing."""
    acted = [each for each in found if each.outcome is not Outcome.INERT]
    named = [each for each in acted if each.outcome is Outcome.NAMED]
    placed = [each for each in acted if each.place is not None]
    counts = Counter(str(each.outcome) for each in found)
    class_right = percent(f"faults.class right, {whose}", len(named), len(acted), NAMED)
    place_exact = percent(f"faults.place exact, {whose}", sum(bool(each.place) for each in placed), len(placed), PLACED)
    return [
        {**class_right, "outcomes": dict(counts), "not_named": dict(described(found))},
        {**place_exact, "misplaced": [each.case.name for each in placed if not each.place]},
        figure(f"faults.inert, {whose}", counts[str(Outcome.INERT)], "faults", 0),
    ]


def described(found: Iterable[Judged]) -> Iterable[tuple[str, str]]:
    for each in found:
        if each.outcome is not Outcome.NAMED:
            called = f" as {each.called or 'no class'}" if each.outcome in TOLD else ""
            yield each.case.name, f"{each.case.fault_class}: {each.outcome}{called}"


def percent(name: str, right: int, of: int, target: float) -> dict[str, Any]:
    value = round(100 * right / of, 1) if of else 0.0
    return figure(f"{name}, {right} of {of}", value, "%", target, at_least=True)
