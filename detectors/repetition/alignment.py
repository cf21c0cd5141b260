# mypy: disable-error-code="untyped-decorator, no-any-return, assignment, return-value, arg-type"
# numba is untyped, and what it compiles has fixed-width integers where the annotations say int.
"""Copies that differ here and there: one lag is followed over substitutions and insertions.

A pair or a 4-gram that stood before proposes a lag. How far the text agrees with itself at that lag, counted backwards
until disagreement prevails (the X-drop extension of sequence alignment: Altschul et al. 1990), decides whether it is
taken up. A list's items differ in the same places each time; copies with errors differ in other places each time, and
what differed comes back. So each unit is compared with the copy before and with the copy before that one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from checkengine.detectors.repetition.state import (
    BLANK,
    KIND_MASK,
    LINKS,
    NUMBER,
    RING,
    WEIGHT_BITS,
    WEIGHT_MASK,
    WORD,
)

CAP = 192 * 16
"""Evidence does not grow beyond this, so that a loop that ended is known to have ended."""
HISTORY = 1024 * 16
"""Copied and new tokens are counted over about the last so many."""
MOST_EXTENDED = 320
"""Units that are compared backwards when a lag is proposed."""
DROP = 6 * 16
"""Words' worth of disagreement, net, at which the extension ends."""
TAKE_UP = 5 * 16
"""Words' worth of agreement, net, that a lag needs where none is followed."""
MOST_SHIFTED = 4
"""Units that are put in or left out at once."""
SHORTEST_LIST = 8
"""Shortest period of near-copies."""
NUMBERED = 92
"""Per cent that must agree where the lines begin with something else each time."""
RETURNED = 35
"""Per cent of what is new in copies with errors that must have come back…"""
FRESH = 40
"""…and of that, at most so many that were in none of the copies before, where these differ too."""
ALIKE, FRESH_PUT_IN = 70, 20
"""Per cent that must agree, and as above, where the errors are units put in or left out: nothing comes back."""


@njit
def pair_before(stream: Any, unit: int, position: int, longest: int) -> int:
    """How far back the last two units stood together; 0 where they are new."""
    before = stream.last_unit
    stream.last_unit = unit
    seed = np.uint64(before + 1) * np.uint64(0xD6E8FEB86659FD93) + np.uint64(unit + 1) * np.uint64(0x9E3779B97F4A7C15)
    seed = (seed ^ (seed >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
    slot = np.int64(seed >> np.uint64(53))
    distance = (position - np.int64(stream.pairs[slot])) & 0xFFFF
    stream.pairs[slot] = np.uint16(position & 0xFFFF)
    if distance > longest or distance > position - 1:
        return 0
    here = position - distance
    known = stream.ring[here & (RING - 1)] == unit and stream.ring[(here - 1) & (RING - 1)] == before
    return distance if known else 0


@njit
def code_weight(unit: int) -> int:
    """What of the unit's weight is no prose; prose has signs, but not half of it."""
    kind = (unit >> WEIGHT_BITS) & KIND_MASK
    weight = unit & WEIGHT_MASK
    return weight if kind >= NUMBER else (0 if kind == WORD else weight >> 1)


@njit
def begins_line(stream: Any, position: int) -> bool:
    return (stream.ring[(position - 1) & (RING - 1)] >> WEIGHT_BITS) & KIND_MASK == BLANK


@njit
def earlier_of(stream: Any, position: int, lag: int) -> int:
    """Position of the unit's copy in the copy before the last one; -1 where there is none."""
    before = position - lag
    if before < stream.aligned_since + stream.first_lag:
        return -1
    link = np.int64(stream.links[before & (LINKS - 1)]) if lag < LINKS else lag
    earlier = before - link
    return earlier if earlier >= 0 and position - earlier < RING else -1


@njit
def compare(stream: Any, position: int, lag: int, sign: int) -> bool:
    """Counts one unit against its copies (sign -1: takes it back); true where it is one's equal."""
    unit = stream.ring[position & (RING - 1)]
    before = stream.ring[(position - lag) & (RING - 1)]
    place = earlier_of(stream, position, lag)
    earlier = stream.ring[place & (RING - 1)] if place >= 0 else before
    weight = sign * (unit & WEIGHT_MASK)
    stream.lines += sign * begins_line(stream, position)
    stream.links[position & (LINKS - 1)] = np.uint16(lag)
    same = (unit == before) | (unit == earlier)
    if same:
        stream.copied += weight
        stream.copied_code += sign * code_weight(unit)
        if before != earlier:
            stream.returned += weight
    else:
        stream.new += weight
        stream.numbered += sign * begins_line(stream, position)
        if before != earlier:
            stream.fresh += weight
        elif place >= 0:
            stream.odd += weight
    return same


@njit
def follow_alignment(stream: Any, unit: int, position: int, distance: int, pair: int) -> None:
    """Compare with the copies before, and look at another lag where one is at hand."""
    weight, lag, same = unit & WEIGHT_MASK, stream.aligned, False
    if lag:
        same = compare(stream, position, lag, 1)
        if same:
            stream.likeness = min(stream.likeness + weight, CAP)
        else:
            stream.likeness = max(0, stream.likeness - weight)
            if stream.likeness == 0:
                stream.aligned = 0
        if stream.copied + stream.new > HISTORY:
            stream.copied >>= 1
            stream.new >>= 1
            stream.odd >>= 1
            stream.returned >>= 1
            stream.fresh >>= 1
            stream.copied_code >>= 1
    if distance and distance != lag:
        propose(stream, position, distance, same)
    elif pair and pair != lag:
        propose(stream, position, pair, same)


@njit
def propose(stream: Any, position: int, distance: int, same: bool) -> None:
    lag = stream.aligned
    if lag == 0:
        score, length = extend(stream, position, distance)
        if score >= TAKE_UP:
            take(stream, position, distance, score, length)
    elif not same and abs(distance - lag) <= MOST_SHIFTED:
        if not agrees_at(stream, position - 1, lag):
            shift(stream, position, distance)
    elif not same or lag % distance == 0:
        score, length = extend(stream, position, distance)
        enough = 4 * score >= 3 * stream.likeness if distance < lag else 3 * score > 4 * stream.likeness
        if enough and score >= TAKE_UP:
            take(stream, position, distance, score, length)


@njit
def agrees_at(stream: Any, position: int, lag: int) -> bool:
    return stream.ring[position & (RING - 1)] == stream.ring[(position - lag) & (RING - 1)]


@njit
def shift(stream: Any, position: int, lag: int) -> None:
    """The same copies, with units put in or left out: the pair that shows it was counted at the lag before."""
    for here in range(position - 1, position + 1):
        compare(stream, here, stream.aligned, -1)
        compare(stream, here, lag, 1)
        stream.likeness = min(stream.likeness + 2 * (stream.ring[here & (RING - 1)] & WEIGHT_MASK), CAP)
    stream.aligned = lag


@njit
def extend(stream: Any, position: int, lag: int) -> tuple[int, int]:
    """Net agreement at the lag, backwards, and the number of units over which it is highest."""
    score, best, length = 0, 0, 0
    most = min(MOST_EXTENDED, position - lag + 1)
    for back in range(most):
        here = position - back
        unit = stream.ring[here & (RING - 1)]
        same = unit == stream.ring[(here - lag) & (RING - 1)]
        if not same and 2 * lag <= min(here, RING - 1 - back):
            same = unit == stream.ring[(here - 2 * lag) & (RING - 1)]
        if same:
            score += unit & WEIGHT_MASK
            if score > best:
                best, length = score, back + 1
        else:
            score -= unit & WEIGHT_MASK
            if score < best - DROP:
                break
    return best, length


@njit
def take(stream: Any, position: int, lag: int, score: int, length: int) -> None:
    """Follow this lag, as if since the text began to agree at it."""
    stream.aligned = stream.first_lag = lag
    stream.aligned_since = position + 1 - length - lag
    stream.likeness = min(score, CAP)
    stream.copied = stream.copied_code = stream.new = stream.odd = 0
    stream.returned = stream.fresh = stream.numbered = stream.lines = 0
    for here in range(position + 1 - length, position + 1):
        compare(stream, here, lag, 1)


@njit
def is_near_copy(stream: Any, limits: Any) -> bool:
    """Three copies that differ here and there, or items of a list that hardly differ."""
    copied, new, lag = stream.copied, stream.new, stream.aligned
    covered = stream.position - stream.aligned_since
    prose = 100 * stream.copied_code <= limits.code * copied
    long = covered >= 3 * lag and copied + new >= limits.likeness
    counted = 100 * copied >= (NUMBERED if is_numbered(stream) else limits.copied_list) * (copied + new)
    return long and lag >= SHORTEST_LIST and prose and (counted or has_errors(stream, limits))


@njit
def is_numbered(stream: Any) -> bool:
    """More than two of three lines begin with something else than the one that they are compared with."""
    return 3 * stream.numbered > 2 * stream.lines


@njit
def has_errors(stream: Any, limits: Any) -> bool:
    """What differs stands in other places each time, and comes back."""
    copied, new, odd, returned = stream.copied, stream.new, stream.odd, stream.returned
    fewer = 10 if copied + new >= 2 * limits.likeness else 0
    comes_back = 100 * returned >= (RETURNED - fewer) * new and 100 * stream.fresh <= (FRESH + fewer) * (odd + returned)
    put_in = 100 * copied >= ALIKE * (copied + new) and 100 * stream.fresh <= FRESH_PUT_IN * (odd + returned)
    alike = 100 * copied >= limits.copied * (copied + new)
    return alike and (comes_back or put_in) and not is_numbered(stream)
