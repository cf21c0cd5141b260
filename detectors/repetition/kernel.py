"""One token of a stream after another, compiled: what repeats, since when and how exactly.

A stream's state is a ring of its last 8,192 units, two hash indexes of where its 8-grams and 4-grams stood last, and
the counters below: 57.5 KiB. The index proposes a lag; only comparison with the ring decides. Nothing is searched, so
the cost of a token does not depend on the period.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

RING = 8192
EIGHTS = 8192
FOURS = 4096
MOST_BACKWARD = 1024
"""Tokens that are compared backwards when a lag is taken up; a longer cycle is counted from there."""
CAP = 192 * 16
"""Evidence does not grow beyond this, so that a loop that ended is known to have ended."""
HISTORY = 1024 * 16
"""Copied and new tokens are counted over about the last so many."""
LIKE = 8

WORD, SIGN, BLANK, NUMBER, CODE, INDENT = range(6)
"""Kinds of a unit; from NUMBER on they are of code and tables rather than of prose."""
WEIGHT_BITS, KIND_BITS = 6, 3
UNIT_BITS = WEIGHT_BITS + KIND_BITS

(
    POSITION, EIGHT, FOUR, LAG, RUN, RUN_WEIGHT, WORDY,
    ALIGNED, LIKENESS, ALIGNED_SINCE, COPIED, NEW, ODD, COPIED_CODE,
    REUSE, REUSE_SINCE, REUSED, UNUSED, REUSED_CODE,
    BLANKS, CALM, STAGE, QUIET, COUNTERS,
) = range(24)  # fmt: skip

(
    LONGEST, REPEATED, SLACK, WEIGHT, SHORT_SPAN, LIKENESS_LIMIT, COPIED_LIMIT, COPIED_LIST, REUSE_LIMIT, CODE_LIMIT,
    BLANK_RUN, CALM_COPIES, CALM_SPAN, COPIES, SPAN, NEAR_SPAN, BLANK_SPAN, RECOVERY, CYCLES_ONLY,
) = range(19)  # fmt: skip
"""Places of RepetitionLimits' fields."""

QUIET_STAGE, WARNED, STOPPED = range(3)
CYCLE, NEAR_COPY, REUSED_TEXT, BLANK_TEXT, RECOVERED = range(1, 6)
STOP = 8
"""Added to the kind of an event that may stop the sequence."""
EVENT_FIELDS = 7
"""Row, offset in the call, kind, period, covered tokens, position of the first repeated one, share of new in 1/1000."""

Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def push_rows(
    ring: Any,
    grams: Any,
    counters: Any,
    slots: Ints,
    ends: Ints,
    units: Any,
    entropy: Any,
    calm: float,
    limits: Ints,
    events: Ints,
) -> int:
    """Every row's units into its stream; the number of events written. `ends[row]` is where row's units end."""
    found, first = 0, 0
    for row in range(len(slots)):
        slot = slots[row]
        state = counters[slot]
        for at in range(first, ends[row]):
            state[CALM] = state[CALM] + 1 if entropy[at] <= calm else 0
            kind = push(ring[slot], grams[slot], state, units[at], limits)
            if kind:
                write_event(events[found], row, at - first, kind, state, limits)
                found += 1
        first = ends[row]
    return found


@njit(cache=True, nogil=True)
def push(ring: Any, grams: Any, state: Ints, unit: int, limits: Ints) -> int:
    """One unit into one stream; 0 or the kind of what is to be told now."""
    position = state[POSITION]
    state[POSITION] = position + 1
    ring[position & (RING - 1)] = unit
    spread = np.uint64(unit + 1) * np.uint64(0x9E3779B97F4A7C15)
    follow_cycle(ring, grams, state, unit, position, spread, limits)
    if not limits[CYCLES_ONLY]:
        distance = seen_before(ring, grams, state, position, spread, limits)
        weigh_reuse(state, unit, distance)
        follow_alignment(ring, state, unit, position, distance)
    return stage(ring, state, position, limits)


@njit(cache=True, nogil=True)
def follow_cycle(ring: Any, grams: Any, state: Ints, unit: int, position: int, spread: Any, limits: Ints) -> None:
    """Go on with the lag, or take up the one at which the last 8-gram stood before."""
    # Eight bits a token: after eight tokens a token has left the 64-bit hash.
    seed = (np.uint64(state[EIGHT]) << np.uint64(8)) + spread
    state[EIGHT] = np.int64(seed)
    seed = (seed ^ (seed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    slot = np.int64(seed >> np.uint64(51))
    distance = (position - np.int64(grams[slot])) & 0xFFFF
    grams[slot] = np.uint16(position & 0xFFFF)
    lag = state[LAG]
    if lag:
        if ring[(position - lag) & (RING - 1)] == unit:
            state[RUN] += 1
            state[RUN_WEIGHT] += unit & 63
            return
        state[LAG] = 0
        state[RUN] = 0
    if 0 < distance <= limits[LONGEST] and distance <= position:
        take_up(ring, state, position, distance)


@njit(cache=True, nogil=True)
def take_up(ring: Any, state: Ints, position: int, distance: int) -> None:
    """The stream may have had this lag for longer than the tokens that show it, or not at all."""
    most = min(MOST_BACKWARD, position - distance + 1)
    run, weight = 0, 0
    while run < most:
        unit = ring[(position - run) & (RING - 1)]
        if unit != ring[(position - distance - run) & (RING - 1)]:
            break
        weight += unit & 63
        run += 1
    if run >= 8:
        state[LAG] = distance
        state[RUN] = run
        state[RUN_WEIGHT] = weight
        state[WORDY] = -1


@njit(cache=True, nogil=True)
def seen_before(ring: Any, grams: Any, state: Ints, position: int, spread: Any, limits: Ints) -> int:
    """How far back the last 4-gram stood; 0 where it is new."""
    seed = (np.uint64(state[FOUR]) << np.uint64(16)) + spread
    state[FOUR] = np.int64(seed)
    seed = (seed ^ (seed >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
    slot = EIGHTS + np.int64(seed >> np.uint64(52))
    distance = (position - np.int64(grams[slot])) & 0xFFFF
    grams[slot] = np.uint16(position & 0xFFFF)
    if state[RUN] >= 4:
        return state[LAG]
    if distance == 0 or distance > limits[LONGEST] or distance > position - 3:
        return 0
    for back in range(4):
        if ring[(position - back) & (RING - 1)] != ring[(position - distance - back) & (RING - 1)]:
            return 0
    return distance


@njit(cache=True, nogil=True)
def code_weight(unit: int) -> int:
    """What of the unit's weight is no prose; prose has signs, but not half of it."""
    kind = (unit >> WEIGHT_BITS) & 7
    if kind >= NUMBER:
        return unit & 63
    return 0 if kind == WORD else (unit & 63) >> 1


@njit(cache=True, nogil=True)
def weigh_reuse(state: Ints, unit: int, distance: int) -> None:
    """Evidence that the text is made of pieces of itself, wherever they stood."""
    weight = unit & 63
    if distance:
        if state[REUSE] == 0:
            state[REUSE_SINCE] = state[POSITION] - 1
            state[REUSED] = state[UNUSED] = state[REUSED_CODE] = 0
        state[REUSE] = min(state[REUSE] + weight, CAP)
        state[REUSED] += weight
        state[REUSED_CODE] += code_weight(unit)
        state[QUIET] = max(0, state[QUIET] - 2)
    else:
        state[REUSE] = max(0, state[REUSE] - weight)
        state[UNUSED] += weight
        state[QUIET] += 1
    if state[REUSED] + state[UNUSED] > HISTORY:
        state[REUSED] >>= 1
        state[UNUSED] >>= 1
        state[REUSED_CODE] >>= 1


@njit(cache=True, nogil=True)
def follow_alignment(ring: Any, state: Ints, unit: int, position: int, distance: int) -> None:
    """Compare with the copy before and the one before that, over substitutions, and shift with insertions."""
    weight, lag, code = unit & 63, state[ALIGNED], code_weight(unit)
    if lag:
        before = ring[(position - lag) & (RING - 1)]
        twice = 2 * lag <= min(position, RING - 1)
        earlier = ring[(position - 2 * lag) & (RING - 1)] if twice else before
        if unit in (before, earlier):
            state[LIKENESS] = min(state[LIKENESS] + weight, CAP)
            state[COPIED] += weight
            state[COPIED_CODE] += code
        else:
            state[LIKENESS] -= weight
            state[NEW] += weight
            if twice and before == earlier:
                state[ODD] += weight
            if state[LIKENESS] <= 0:
                lag = state[ALIGNED] = state[LIKENESS] = 0
        if state[COPIED] + state[NEW] > HISTORY:
            for counter in range(COPIED, COPIED_CODE + 1):
                state[counter] >>= 1
    if distance and distance != lag:
        align(state, position, distance, weight, code)


@njit(cache=True, nogil=True)
def align(state: Ints, position: int, distance: int, weight: int, code: int) -> None:
    """Another lag is at hand: the same copies, shifted by an insertion, or other ones."""
    lag = state[ALIGNED]
    run = state[RUN] if state[RUN] >= 4 else 4
    if lag == 0 or state[LIKENESS] < 8 * 16 or run >= 12:
        state[ALIGNED] = distance
        state[ALIGNED_SINCE] = position + 1 - run - distance
        state[LIKENESS] = state[COPIED] = min(run * weight, CAP)
        state[COPIED_CODE] = run * code
        state[NEW] = state[ODD] = 0
    elif abs(distance - lag) <= max(2, lag >> 3):
        state[ALIGNED] = distance
        state[LIKENESS] = min(state[LIKENESS] + 4 * weight, CAP)
        state[COPIED] += 4 * weight
        state[COPIED_CODE] += 4 * code
        state[NEW] = max(0, state[NEW] - 3 * weight)


@njit(cache=True, nogil=True)
def stage(ring: Any, state: Ints, position: int, limits: Ints) -> int:
    """Warn, then stop, or tell that the loop ended."""
    if state[STAGE] == STOPPED:
        return 0
    blank = (ring[position & (RING - 1)] >> WEIGHT_BITS) & 7
    state[BLANKS] = state[BLANKS] + 1 if blank in (BLANK, INDENT) else 0
    if state[LAG] and state[WORDY] < 0 and state[RUN] >= limits[REPEATED]:
        state[WORDY] = has_words(ring, position, state[LAG])
    kind = may_stop(state, limits)
    if kind:
        state[STAGE] = STOPPED
        return kind + STOP
    if state[STAGE] == QUIET_STAGE:
        kind = may_warn(state, limits)
        if kind:
            state[STAGE] = WARNED
            state[QUIET] = 0
        return kind
    if state[QUIET] >= limits[RECOVERY] and state[LAG] == 0:
        state[STAGE] = QUIET_STAGE
        state[REUSE] = state[LIKENESS] = state[ALIGNED] = 0
        return RECOVERED
    return 0


@njit(cache=True, nogil=True)
def may_warn(state: Ints, limits: Ints) -> int:
    lag, run = state[LAG], state[RUN]
    long = lag and run >= limits[REPEATED] and run >= lag + limits[SLACK] and state[RUN_WEIGHT] >= limits[WEIGHT]
    if long and (state[WORDY] > 0 or run + lag >= limits[SHORT_SPAN]):
        return CYCLE
    if state[REUSE] >= limits[REUSE_LIMIT] and 100 * state[REUSED_CODE] <= limits[CODE_LIMIT] * state[REUSED]:
        return REUSED_TEXT
    third = state[POSITION] - state[ALIGNED_SINCE] >= 2 * state[ALIGNED] + limits[SLACK]
    if third and state[LIKENESS] >= limits[LIKENESS_LIMIT] and is_near_copy(state, limits):
        return NEAR_COPY
    return BLANK_TEXT if state[BLANKS] >= limits[BLANK_RUN] else 0


@njit(cache=True, nogil=True)
def is_near_copy(state: Ints, limits: Ints) -> bool:
    """Copies that differ here and there, or a list whose items hardly differ."""
    copied, new = state[COPIED], state[NEW]
    if state[ALIGNED] < LIKE or 100 * state[COPIED_CODE] > limits[CODE_LIMIT] * copied:
        return False
    share = 100 * copied
    if share >= limits[COPIED_LIST] * (copied + new):
        return True
    return share >= limits[COPIED_LIMIT] * (copied + new) and 3 * state[ODD] >= new


@njit(cache=True, nogil=True)
def has_words(ring: Any, position: int, period: int) -> bool:
    """A quarter of the last copy (its last 64 tokens) are words."""
    length, words = min(period, 64), 0
    for back in range(length):
        words += ((ring[(position - back) & (RING - 1)] >> WEIGHT_BITS) & 7) == WORD
    return 4 * words >= length


@njit(cache=True, nogil=True)
def may_stop(state: Ints, limits: Ints) -> int:
    lag, run = state[LAG], state[RUN]
    span, least = lag + run, 2 * limits[SPAN]
    if lag and run >= limits[REPEATED]:
        if state[WORDY] > 0:
            least = limits[SPAN]
        calm = limits[CALM_SPAN] if state[WORDY] > 0 else limits[SHORT_SPAN]
        if state[CALM] >= run and span >= calm and span >= limits[CALM_COPIES] * lag:
            return CYCLE
        if span >= least and span >= limits[COPIES] * lag:
            return CYCLE
    if state[BLANKS] >= limits[BLANK_SPAN]:
        return BLANK_TEXT
    if (
        state[STAGE] == WARNED
        and state[REUSE] >= CAP // 2
        and state[POSITION] - state[REUSE_SINCE] >= limits[NEAR_SPAN]
    ):
        prose = 100 * state[REUSED_CODE] <= limits[CODE_LIMIT] * state[REUSED]
        if prose and 100 * state[UNUSED] <= 6 * (state[REUSED] + state[UNUSED]):
            return REUSED_TEXT
    return 0


@njit(cache=True, nogil=True)
def write_event(event: Ints, row: int, offset: int, kind: int, state: Ints, limits: Ints) -> None:
    event[0], event[1], event[2] = row, offset, kind
    rule, position = kind & (STOP - 1), state[POSITION]
    if rule == CYCLE:
        event[3], event[4], event[6] = state[LAG], state[RUN] + state[LAG], 0
        event[5] = position - state[RUN]
    elif rule == NEAR_COPY:
        event[3], event[4] = state[ALIGNED], position - state[ALIGNED_SINCE]
        event[5] = state[ALIGNED_SINCE] + state[ALIGNED]
        event[6] = 1000 * state[NEW] // max(1, state[NEW] + state[COPIED])
    elif rule == REUSED_TEXT:
        event[3], event[4] = state[ALIGNED], position - state[REUSE_SINCE]
        event[5] = max(0, state[REUSE_SINCE] - 3)
        event[6] = 1000 * state[UNUSED] // max(1, state[REUSED] + state[UNUSED])
    elif rule == BLANK_TEXT:
        event[3], event[4], event[5], event[6] = 1, state[BLANKS], position - state[BLANKS], 0
    else:
        event[3], event[4], event[5], event[6] = 0, state[QUIET], position - state[QUIET], 1000
