"""The highest rate that still meets the limits: doubled until it does not, then bisected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

RATIO = 1.1
"""Between the highest rate that is known to meet and the lowest that is known not to, when the search ends."""
MOST_RUNS = 16


async def highest_rate(
    meets: Callable[[float], Awaitable[bool]], first: float, least: float = 0.0
) -> tuple[float, float | None]:
    """(highest rate that met, lowest that did not): 0.0 where none met, None where none was missed. Both in requests a
    second; below `least` none is tried. One that meets at a rate and misses at a lower one is taken at its lower."""
    good, bad, rate = 0.0, None, first
    for _ in range(MOST_RUNS):
        if await meets(rate):
            good = max(good, rate)
        else:
            bad = rate if bad is None else min(bad, rate)
        if bad is not None and (good and bad / good <= RATIO):
            break
        if bad is None:
            rate = good * 2
        else:
            rate = (good * bad) ** 0.5 if good else bad / 2
        if rate < least:
            break
    return good, bad
