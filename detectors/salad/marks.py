"""Marks of salad, compiled: control tokens, broken characters, words of a foreign script inside a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.salad.columns import (
    BEGINS_LETTER,
    BEGINS_SPACE,
    BLANK,
    BROKEN,
    COUNT,
    EDGE,
    END,
    EXPECTED,
    FOREIGN,
    FOREIGN_BYTES,
    FOREIGN_TOKEN,
    LAST_TOKEN,
    LEADING,
    LENGTH,
    LETTERS,
    MARK,
    MARKED,
    MARKS_START,
    NEEDED,
    ODD,
    PLAIN,
    PLAIN_BEFORE,
    RESERVED,
    SCRIPT,
    SCRIPT_COUNTS,
    SMALL,
    within,
)

FADE = 0.12
"""Nats that marks lose with every token: a hundred tokens forget what a few of them told."""
RESERVED_NATS, CONTROL_NATS, BROKEN_NATS, FOREIGN_NATS = 10.0, 6.5, 4.0, 16.0
PIECE, FIRST_SCRIPT = 1, 2
"""Values of SCRIPT: a piece of a character that does not tell, and from where on it is a writing system."""
FOREIGN_LEAST = 4
"""Bytes of a foreign word: a single Greek letter is a formula."""
NATIVE_BYTES = 96
"""Of one script in a row that make it the sequence's own: a turn of language is no salad..."""
APART_BYTES = 5
NATIVE_LETTERS = 40
"""... or half of so many tokens."""


@within
def mark(row: Any, token: Any, whole: Any, real: Any) -> None:
    """Adds what this token tells; without a mark, what they told before fades."""
    odd = np.float32(0.0)
    if row[MARK] and token != whole[LAST_TOKEN]:
        odd += np.float32(RESERVED_NATS if row[MARK] == RESERVED else CONTROL_NATS)
    if broken(row, whole) and new_mark(token, whole, real):
        odd += np.float32(BROKEN_NATS)
    if foreign_word(row, token, whole) and new_mark(whole[FOREIGN_TOKEN], whole, real):
        odd += np.float32(FOREIGN_NATS)
    if odd > 0.0:
        if real[ODD] == 0.0:
            whole[MARKS_START] = whole[COUNT] - 1
        real[ODD] += odd
    elif real[ODD] > 0.0:
        real[ODD] = max(real[ODD] - np.float32(FADE), np.float32(0.0))


@within
def broken(row: Any, whole: Any) -> bool:
    """Whether this token breaks a character off, or goes on with one that nobody began."""
    needed = whole[NEEDED]
    whole[NEEDED] = 0
    if row[EDGE] & PLAIN:
        return bool(needed > 0)
    if row[LEADING] > needed or row[END] < 0 or (row[EDGE] & BROKEN and row[LEADING] != needed):
        whole[NEEDED] = max(row[END], 0)
        return True
    whole[NEEDED] = row[END] if row[EDGE] & BROKEN else needed - row[LEADING]
    return False


@within
def foreign_word(row: Any, token: Any, whole: Any) -> bool:
    """Whether a word in a script that is not the sequence's own has just ended, between two small words."""
    script, edge = row[SCRIPT], row[EDGE]
    if edge & BLANK or (script == PIECE and whole[FOREIGN] == 0):
        return False
    ended = False
    if script >= FIRST_SCRIPT and not own_script(script, whole):
        if whole[FOREIGN] == 0:
            whole[FOREIGN] = 1 if whole[PLAIN_BEFORE] and edge & (BEGINS_SPACE | BEGINS_LETTER) else -1
            whole[FOREIGN_BYTES], whole[FOREIGN_TOKEN] = 0, token
    elif whole[FOREIGN] != 0 and script != PIECE:
        ended = whole[FOREIGN] == 1 and edge & SMALL != 0 and whole[FOREIGN_BYTES] >= FOREIGN_LEAST
        whole[FOREIGN] = 0
    if whole[FOREIGN]:
        whole[FOREIGN_BYTES] += row[LENGTH]
    whole[PLAIN_BEFORE] = edge & SMALL
    return ended


@within
def new_mark(token: Any, whole: Any, real: Any) -> bool:
    """False where this token told already: the same foreign name again and again is no salad."""
    bit = np.int64(1) << (token % 63)
    known = real[ODD] > 0.0 and whole[MARKED] & bit != 0
    whole[MARKED] = (whole[MARKED] if real[ODD] > 0.0 else 0) | bit
    return not known


@within
def own_script(script: Any, whole: Any) -> bool:
    """Counts a token of a writing system; true where it is the sequence's own by now."""
    whole[SCRIPT_COUNTS + script] += 1
    whole[LETTERS] += 1
    count = whole[SCRIPT_COUNTS + script]
    # A run that stands by itself (at the beginning, in quotes) is what the text is about.
    long = whole[FOREIGN] != 0 and whole[FOREIGN_BYTES] >= (NATIVE_BYTES if whole[FOREIGN] == 1 else APART_BYTES)
    if long or (whole[LETTERS] >= NATIVE_LETTERS and 2 * count > whole[LETTERS]):
        whole[EXPECTED] |= np.int64(1) << script
    return bool((whole[EXPECTED] >> script) & 1)
