"""Every planted fault, the author's and those written blind; made-up calls; rounding; what comes again and what does
not. Minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from checkengine.benchmarks.corpus_calls import call_figures
from checkengine.benchmarks.corpus_numerics import numerics_figures
from checkengine.benchmarks.corpus_persistence import persistence_figures
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.op_hashes import op_hash_figures
from checkengine.engine_shim.faults import FAULTS
from checkengine.engine_shim.faults.blind import BLIND_FAULTS
from checkengine.engine_shim.faults.fresh import FRESH_FAULTS
from checkengine.selftest_cases import case_of
from checkengine.selftest_faults import judged
from checkengine.selftest_judging import Judged, Outcome

NAMED, PLACED = 95.0, 95.0
"""Percent."""
TOLD = (Outcome.MISNAMED, Outcome.RAISED)


def corpus_figures(*, quick: bool = False) -> list[dict[str, Any]]:
    own = FAULTS if not quick else list(FAULTS)[::6]
    blind = BLIND_FAULTS if not quick else list(BLIND_FAULTS)[::8]
    fresh = FRESH_FAULTS if not quick else list(FRESH_FAULTS)[::5]
    return [
        *figures_of("own", [judged(case_of(name)) for name in own]),
        *figures_of("blind", [judged(case_of(name)) for name in blind]),
        *figures_of("fresh", [judged(case_of(name)) for name in fresh]),
        *call_figures(quick=quick),
        *numerics_figures(quick=quick),
        *persistence_figures(quick=quick),
        *op_hash_figures(quick=quick),
    ]


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
