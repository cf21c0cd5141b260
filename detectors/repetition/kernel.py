# mypy: disable-error-code="untyped-decorator, no-any-return, assignment, return-value, arg-type"
# numba is untyped, and what it compiles has fixed-width integers where the annotations say int.
"""One token of a stream after another, compiled: what repeats, since when and how exactly.

An index of 8-grams proposes a lag; only comparison with the ring decides. Nothing is searched, so the cost of a token
does not depend on the period. Streams are records: numba passes these without counting references.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from checkengine.detectors.compiled import compiled
from checkengine.detectors.repetition.alignment import (
    CAP,
    HISTORY,
    code_weight,
    follow_alignment,
    has_errors,
    is_near_copy,
    pair_before,
)
from checkengine.detectors.repetition.state import (
    BLANK,
    INDENT,
    KIND_MASK,
    RING,
    WEIGHT_BITS,
    WEIGHT_MASK,
    WORD,
)

MOST_BACKWARD = 1024
"""Tokens that are compared backwards when a lag is taken up; a longer cycle is counted from there."""
NEW_PER_CENT = 4
"""Of a long stretch that may be stopped."""

QUIET, WARNED, STOPPED = range(3)
UNKNOWN, BARE, WORDY, PROSE = range(4)
CYCLE, NEAR_COPY, REUSED_TEXT, BLANK_TEXT, RECOVERED = range(1, 6)
STOP = 8
"""Added to the kind of an event that may stop the sequence."""
EVENT_FIELDS = 7
"""Row, offset in the call, kind, period, covered tokens, position of the first repeated one, share of new in 1/1000."""

Ints = NDArray[np.int64]


@compiled
def push_rows(
    streams: Any, slots: Ints, ends: Ints, units: Any, entropy: Any, calm: float, limits: Any, events: Ints
) -> int:
    """Every row's units into its stream; the number of events written. `ends[row]` is where row's units end."""
    found, first = 0, 0
    for row in range(len(slots)):
        stream = streams[slots[row]]
        for at in range(first, ends[row]):
            stream.calm = stream.calm + 1 if entropy[at] <= calm else 0
            kind = push(stream, units[at], limits[0])
            if kind:
                write_event(events[found], row, at - first, kind, stream)
                found += 1
        first = ends[row]
    return found


@njit
def push(stream: Any, unit: int, limits: Any) -> int:
    """One unit into one stream; 0 or the kind of what is to be told now.""" ""
    position = stream.position
    stream.position = position + 1
    stream.ring[position & (RING - 1)] = unit
    spread = np.uint64(unit + 1) * np.uint64(0x9E3779B97F4A7C15)
    follow_cycle(stream, unit, position, spread, limits.longest_period)
    if not limits.cycles_only:
        distance = seen_before(stream, position, spread, limits.longest_period)
        weigh_reuse(stream, unit, distance)
        follow_alignment(stream, unit, position, distance, pair_before(stream, unit, position, limits.longest_period))
    count_blanks(stream, unit)
    if stream.lag and stream.wordy == UNKNOWN and stream.run >= limits.repeated:
        stream.wordy = wordiness(stream, position, stream.lag, limits.code)
    return stage(stream, limits)


@njit
def follow_cycle(stream: Any, unit: int, position: int, spread: Any, longest: int) -> None:
    """Go on with the lag, or take up the one at which the last 8-gram stood before."""
    # Eight bits a token: after eight tokens a token has left the 64-bit hash.
    seed = (np.uint64(stream.last_eight) << np.uint64(8)) + spread
    stream.last_eight = np.int64(seed)
    seed = (seed ^ (seed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    slot = np.int64(seed >> np.uint64(51))
    distance = (position - np.int64(stream.eights[slot])) & 0xFFFF
    stream.eights[slot] = np.uint16(position & 0xFFFF)
    lag = stream.lag
    if lag and stream.ring[(position - lag) & (RING - 1)] == unit:
        stream.run += 1
        stream.run_weight += unit & WEIGHT_MASK
    else:
        stream.lag = 0
        stream.run = 0
        if 0 < distance <= longest and distance <= position:
            take_up(stream, position, distance)


@njit
def agrees(stream: Any, position: int, distance: int) -> bool:
    return stream.ring[position & (RING - 1)] == stream.ring[(position - distance) & (RING - 1)]


@njit
def take_up(stream: Any, position: int, distance: int) -> None:
    """The stream may have had this lag for longer than the tokens that show it, or not at all."""
    most = min(MOST_BACKWARD, position - distance + 1)
    run, weight = 0, 0
    while (
        run < most
        and stream.ring[(position - run) & (RING - 1)] == stream.ring[(position - distance - run) & (RING - 1)]
    ):
        weight += stream.ring[(position - run) & (RING - 1)] & WEIGHT_MASK
        run += 1
    if run >= 8:
        stream.lag = distance
        stream.run = run
        stream.run_weight = weight
        stream.wordy = UNKNOWN


@njit
def seen_before(stream: Any, position: int, spread: Any, longest: int) -> int:
    """How far back the last 4-gram stood; 0 where it is new."""
    seed = (np.uint64(stream.last_four) << np.uint64(16)) + spread
    stream.last_four = np.int64(seed)
    seed = (seed ^ (seed >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
    slot = np.int64(seed >> np.uint64(52))
    distance = (position - np.int64(stream.fours[slot])) & 0xFFFF
    stream.fours[slot] = np.uint16(position & 0xFFFF)
    if stream.run >= 4:
        distance = stream.lag
    elif distance > longest or distance > position - 3:
        distance = 0
    else:
        agree = 0
        while (
            agree < 4
            and stream.ring[(position - agree) & (RING - 1)] == stream.ring[(position - distance - agree) & (RING - 1)]
        ):
            agree += 1
        if agree < 4:
            distance = 0
    return distance


@njit
def weigh_reuse(stream: Any, unit: int, distance: int) -> None:
    """Evidence that the text is made of pieces of itself, wherever they stood."""
    weight = unit & WEIGHT_MASK
    if distance:
        if stream.reuse == 0:
            stream.reuse_since = stream.position - 1
            stream.reused = stream.unused = stream.reused_code = 0
        stream.reuse = min(stream.reuse + weight, CAP)
        stream.reused += weight
        stream.reused_code += code_weight(unit)
        stream.quiet = max(0, stream.quiet - 2)
    else:
        stream.reuse = max(0, stream.reuse - weight)
        stream.unused += weight
        stream.quiet += 1
    if stream.reused + stream.unused > HISTORY:
        stream.reused >>= 1
        stream.unused >>= 1
        stream.reused_code >>= 1


@njit
def count_blanks(stream: Any, unit: int) -> None:
    kind = (unit >> WEIGHT_BITS) & KIND_MASK
    if kind == BLANK or kind == INDENT:  # noqa: SIM109  compiled, `in` builds a tuple
        stream.blanks += 1
    else:
        stream.blanks = 0


@njit
def wordiness(stream: Any, position: int, period: int, code: int) -> int:
    """PROSE, WORDY (a fifth of the last copy, or of its last 64 tokens, are words) or BARE."""
    length, words, signs, worth = min(period, 64), 0, 0, 0
    for back in range(length):
        unit = stream.ring[(position - back) & (RING - 1)]
        words += ((unit >> WEIGHT_BITS) & KIND_MASK) == WORD
        worth += unit & WEIGHT_MASK
        signs += code_weight(unit)
    if 5 * words < length:
        return BARE
    return PROSE if 100 * signs <= code * worth else WORDY


@njit
def stage(stream: Any, limits: Any) -> int:
    """Warn, then stop, or tell that the loop ended."""
    kind = 0
    if stream.stage != STOPPED:
        kind = may_stop(stream, limits)
        if kind:
            kind += STOP
            stream.stage = STOPPED
        elif stream.stage == QUIET:
            kind = may_warn(stream, limits)
            if kind:
                stream.stage = WARNED
                stream.quiet = 0
        elif stream.quiet >= limits.recovery and stream.lag == 0:
            kind = RECOVERED
            stream.stage = QUIET
            stream.reuse = stream.likeness = stream.aligned = 0
    return kind


@njit
def may_warn(stream: Any, limits: Any) -> int:
    kind = 0
    if is_cycle(stream, limits):
        kind = CYCLE
    elif stream.reuse >= limits.reuse and 100 * stream.reused_code <= limits.code * stream.reused:
        kind = REUSED_TEXT
    elif stream.aligned and is_near_copy(stream, limits):
        kind = NEAR_COPY
    elif stream.blanks >= limits.blank_run:
        kind = BLANK_TEXT
    return kind


@njit
def is_cycle(stream: Any, limits: Any) -> bool:
    """More than two copies of words, or a long row of signs."""
    lag, run = stream.lag, stream.run
    found = False
    if lag and run >= limits.repeated and run >= lag + limits.slack and stream.run_weight >= limits.weight:
        found = stream.wordy >= WORDY or run + lag >= limits.short_span
    return found


@njit
def may_stop(stream: Any, limits: Any) -> int:
    kind = 0
    if stream.lag and stream.run >= limits.repeated and goes_on(stream, limits):
        kind = CYCLE
    elif stream.blanks >= limits.blank_span:
        kind = BLANK_TEXT
    elif stream.stage == WARNED and stream.reuse >= CAP // 2 and has_nothing_new(stream, limits):
        kind = REUSED_TEXT
    elif stream.stage == WARNED and stream.aligned and stays_near(stream, limits):
        kind = NEAR_COPY
    return kind


@njit
def stays_near(stream: Any, limits: Any) -> bool:
    """Copies with errors over a long stretch. The items of a list, however much alike, are no reason to stop."""
    covered = stream.position - stream.aligned_since
    long = covered >= limits.near_span and covered >= limits.prose_copies * stream.aligned
    prose = 200 * stream.copied_code <= limits.code * stream.copied
    return long and prose and has_errors(stream, limits)


@njit
def goes_on(stream: Any, limits: Any) -> bool:
    """A cycle that nothing could end: collapsed logits, or a long span without anything new."""
    lag, wordy = stream.lag, stream.wordy
    span = lag + stream.run
    least, calm = limits.span, limits.calm_span
    if wordy == PROSE and span >= limits.prose_copies * lag:
        least = limits.prose_span
    elif wordy == BARE:
        least, calm = 4 * limits.span, limits.calm_bare_span
    collapsed = stream.calm >= stream.run and span >= calm and span >= limits.calm_copies * lag
    return collapsed or (span >= least and span >= limits.copies * lag)


@njit
def has_nothing_new(stream: Any, limits: Any) -> bool:
    """A long stretch of prose that is made of pieces of itself."""
    prose = 100 * stream.reused_code <= limits.code * stream.reused
    new = 100 * stream.unused > NEW_PER_CENT * (stream.reused + stream.unused)
    return prose and not new and stream.position - stream.reuse_since >= limits.near_span


@njit
def write_event(event: Ints, row: int, offset: int, kind: int, stream: Any) -> None:
    event[0], event[1], event[2] = row, offset, kind
    rule, position = kind & (STOP - 1), stream.position
    if rule == CYCLE:
        event[3], event[4], event[6] = stream.lag, stream.run + stream.lag, 0
        event[5] = position - stream.run
    elif rule == NEAR_COPY:
        event[3], event[4] = stream.aligned, position - stream.aligned_since
        event[5] = stream.aligned_since + stream.aligned
        event[6] = 1000 * stream.new // max(1, stream.new + stream.copied)
    elif rule == REUSED_TEXT:
        event[3], event[4] = stream.aligned, position - stream.reuse_since
        event[5] = max(0, stream.reuse_since - 3)
        event[6] = 1000 * stream.unused // max(1, stream.reused + stream.unused)
    elif rule == BLANK_TEXT:
        event[3], event[4], event[5], event[6] = 1, stream.blanks, position - stream.blanks, 0
    else:
        event[3], event[4], event[5], event[6] = 0, stream.quiet, position - stream.quiet, 1000
