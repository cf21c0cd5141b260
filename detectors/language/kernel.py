"""The reader's inner loop: bytes of UTF-8 in, evidence against the expected language out; integers only.

One call reads any number of bytes. All that it knows of a stream is in the arrays it is given, so where the bytes
are cut changes nothing. Evidence is in sixteenths of a nat.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.compiled import compiled
from checkengine.detectors.language.characters import (
    APOSTROPHE,
    CLOSE,
    DASH,
    DIGIT,
    GLUE,
    JOINER,
    LOWER,
    MARK,
    NEWLINE,
    OPEN,
    QUOTE,
    SPACE,
    STOP,
    TICK,
    UPPER,
)

# fmt: off
(
    NEED, CODE, CHARACTER, LENGTH, CAPITALS, CAPITAL, SKIP, HASH, SCRIPT, WORD_START, WORD_BYTES, PREVIOUS,
    FENCE, TICKS, IN_TICKS, QUOTED, BRACKETED, CODE_SIGNS, IS_FLAG, RECENT, _RECENT_1, _RECENT_2, _RECENT_3,
    RECENT_AT, REST, HOT, FOREIGN, FOREIGN_START, EXPECTED, EVENT, EVENT_START, EVENT_WHAT, WARNED, ERRED, TOTALS,
) = range(35)
FIELDS = 35
(
    CLIP, CLIP_SHORT, CLIP_HAN, CAPITAL_EIGHTHS, UNEXPECTED_BASE, WARN, ERROR, FOREIGN_WARN, FOREIGN_ERROR,
    LONGEST_QUOTE, RESTS,
) = range(11)
LIMITS = 11
NO_EVENT, FOREIGN_SCRIPT_SEEN, FOREIGN_LANGUAGE_SEEN = range(3)
# fmt: on
WORD = 64
"""Bytes of a word that are read; what is longer is no word."""
LATIN, HANGUL, THAI, LAO, TIBETAN, KANA, HAN = 2, 25, 20, 21, 22, 30, 31
CHUNK = 4
"""Characters of Han and kana, which have no spaces, that are weighed together."""
SHORT = 3
"""Letters of a short word: most of what holds sentences together, and what lists of foreign terms lack."""
KANA_COUNTS = 4
"""Times as much against Chinese as a character of Han may say for it."""
CODE_SIGN, CODE_MOST, CODE_MUTES = 12, 96, 16
"""Each sign of code counts so many characters, all together at most so many, and mutes above so many."""
_FAR = -1_000_000


@compiled
def _features(
    word: Any, length: Any, totals: Any, low: Any, high: Any, first: Any, following: Any, emits: Any, table: Any
) -> Any:
    """Adds each candidate's log-likelihood of the word, with a space on both sides; returns n-grams that were known."""
    for column in range(low, high):
        totals[column] = 0
    state = following[first[0] + 0x20]
    known = 0
    for at in range(length + 1):
        byte = word[at] if at < length else 0x20
        state = following[first[state] + byte]
        feature = emits[state]
        if feature >= 0:
            known += 1
            for column in range(low, high):
                totals[column] += table[feature, column]
    return known


@compiled
def _is_recent(state: Any, value: Any) -> Any:
    """The last four words: a refrain or a list of one word is no evidence of a language."""
    for at in range(RECENT, RECENT_AT):
        if state[at] == value:
            return True
    state[RECENT + state[RECENT_AT]] = value
    state[RECENT_AT] = (state[RECENT_AT] + 1) & 3
    return False


@compiled
def _weigh(
    state: Any,
    word_start: Any,
    least: Any,
    most: Any,
    totals: Any,
    evidence: Any,
    starts: Any,
    roles: Any,
    low: Any,
    high: Any,
    limits: Any,
) -> Any:
    """One word into the sums of all alternatives in its script; it may say from `-least` to `most`."""
    expected = _FAR
    for column in range(low, high):
        if roles[column] == 1 and totals[column] > expected:
            expected = totals[column]
    if expected == _FAR:
        expected = limits[UNEXPECTED_BASE]
    best = -least
    worst = -1
    hot = 0
    for column in range(low, high):
        if roles[column] == 0:
            value = min(most, max(-least, totals[column] - expected))
            best = max(best, value)
            if value > 0 and evidence[column] == 0:
                starts[column] = word_start
            evidence[column] = max(0, evidence[column] + value)
            if evidence[column] > 0:
                hot = 1
                if worst < 0 or evidence[column] > evidence[worst]:
                    worst = column
    state[HOT] = hot
    if best <= 0 and not hot:
        state[REST] = limits[RESTS]
    if worst >= 0:
        _tell(state, evidence, starts, worst, limits)


@compiled
def _tell(state: Any, evidence: Any, starts: Any, column: Any, limits: Any) -> Any:
    told = limits[ERROR] if state[WARNED] else limits[WARN]
    if not state[ERRED] and evidence[column] >= told:
        state[EVENT] = FOREIGN_LANGUAGE_SEEN
        state[EVENT_START] = starts[column]
        state[EVENT_WHAT] = column
    # A reply that turns back is believed again after a few words, however long the other language went on.
    evidence[column] = min(evidence[column], limits[ERROR])


@compiled
def _lose(most: Any, totals: Any, evidence: Any, low: Any, high: Any) -> Any:
    """For a verdict over a whole text: what each candidate loses to the word's best one."""
    best = _FAR
    for column in range(low, high):
        best = max(best, totals[column])
    for column in range(low, high):
        evidence[column] += min(most, best - totals[column])


@compiled
def _weigh_word(
    state: Any,
    word: Any,
    word_bytes: Any,
    word_start: Any,
    script: Any,
    length: Any,
    capital: Any,
    hashed: Any,
    arrays: Any,
    model: Any,
    limits: Any,
) -> Any:
    """One word, or chunk of Han or kana; returns True where that made an event."""
    totals, evidence, starts, roles = arrays
    first, following, emits, table, _scripts, _kinds, lows, highs = model
    low, high = lows[script], highs[script]
    clip = limits[CLIP_HAN] * length if script >= KANA else limits[CLIP_SHORT] if length <= SHORT else limits[CLIP]
    most = clip * limits[CAPITAL_EIGHTHS] // 8 if capital else clip
    if state[TOTALS] == 0 and _is_recent(state, hashed):
        return False
    if not _features(word, word_bytes, totals, low, high, first, following, emits, table):
        return False
    if state[TOTALS]:
        _lose(most, totals, evidence, low, high)
        state[HOT] += length
        return False
    # Chinese has no kana; Japanese has words without.
    least = clip * KANA_COUNTS if script == KANA else clip
    _weigh(state, word_start, least, most, totals, evidence, starts, roles, low, high, limits)
    return state[EVENT] != NO_EVENT


@compiled
def _relieve(state: Any, script: Any, arrays: Any, model: Any, limits: Any) -> Any:
    """A word of the expected script speaks against languages of all others."""
    evidence, lows, highs = arrays[1], model[6], model[7]
    hot = 0
    for column in range(len(evidence)):
        if column < lows[script] or column >= highs[script]:
            evidence[column] = max(0, evidence[column] - limits[CLIP])
        if evidence[column] > 0:
            hot = 1
    state[HOT] = hot


@compiled
def _spaced(script: Any) -> Any:
    """Words of this script are set apart by spaces."""
    return (script < HANGUL and script != THAI and script != LAO and script != TIBETAN) or HANGUL < script < KANA


@compiled
def advance(
    data: Any, at: Any, end: Any, state: Any, word: Any, arrays: Any, tally: Any, model: Any, limits: Any
) -> Any:
    """Reads bytes from `at` on; returns how far it came: to `end`, or to an event (`state[EVENT]`).

    One function, for what is known of a stream stays in registers from character to character.
    """
    # fmt: off
    (
        need, code, character, length, capitals, capital, skip, hashed, script, word_start, word_bytes, previous,
        fence, ticks, in_ticks, quoted, bracketed, code_signs, is_flag,
    ) = (
        state[NEED], state[CODE], state[CHARACTER], state[LENGTH], state[CAPITALS], state[CAPITAL], state[SKIP],
        state[HASH], state[SCRIPT], state[WORD_START], state[WORD_BYTES], state[PREVIOUS], state[FENCE], state[TICKS],
        state[IN_TICKS], state[QUOTED], state[BRACKETED], state[CODE_SIGNS], state[IS_FLAG],
    )
    # fmt: on
    scripts, kinds, lows, highs = model[4], model[5], model[6], model[7]
    rest, state[REST] = state[REST], 0
    foreign, expected, mode, longest = state[FOREIGN], state[EXPECTED], state[TOTALS], limits[LONGEST_QUOTE]
    event: Any = False
    while at < end and not event:
        byte = np.int64(data[at])
        at += 1
        if byte < 0x80:
            code, need = byte, 0
        elif byte >= 0xC0:
            need = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
            code = byte & (0x1F if byte < 0xE0 else 0x0F if byte < 0xF0 else 0x07)
            continue
        elif need > 0:
            code = code << 6 | byte & 0x3F
            need -= 1
            if need > 0:
                continue
        else:
            continue
        kind, now = (kinds[code], np.int64(scripts[code])) if code < len(scripts) else (np.uint8(0), np.int64(0))
        character += 1
        is_letter = kind >= LOWER
        muted = fence > 0 or in_ticks > 0 or code_signs > CODE_MUTES or (mode < 2 and quoted + bracketed > 0)

        # The end of a word.
        if length > 0 and kind != APOSTROPHE and kind != JOINER and kind != MARK:
            ends: Any = True
            glued = 0
            if is_letter:
                ends = now != script or (now >= KANA and length >= CHUNK)
                glued = 1 if now != script and _spaced(now) and _spaced(script) else 0
            elif kind >= GLUE:
                glued = 1
            if ends:
                shouted = capitals > 1 and capitals == length
                single = length == 1 and _spaced(script)
                if (
                    not (muted or shouted or single or skip + glued > 0 or word_bytes > WORD)
                    and lows[script] < highs[script]
                ):
                    if rest > 0 and mode == 0:
                        rest -= 1
                    else:
                        event = _weigh_word(
                            state, word, word_bytes, word_start, script, length, capital, hashed, arrays, model, limits
                        )
                        rest, state[REST] = state[REST], 0
                if mode == 0 and state[HOT] and script != LATIN and (expected >> script) & 1:
                    _relieve(state, script, arrays, model, limits)
                length = capitals = word_bytes = hashed = 0
                skip = glued

        if is_letter:
            if length == 0:
                word_start, script, capital = character - 1, now, 1 if kind == UPPER else 0
                if GLUE <= previous < LOWER:
                    skip = 1
                elif previous < LOWER:
                    # `a.b` and ` -flag` are no prose either, and what stands around them may be code.
                    skip = 1 if (previous == STOP or (previous == DASH and is_flag > 0)) and _spaced(now) else 0
                    code_signs = min(code_signs + CODE_SIGN * skip, CODE_MOST)
            length += 1
            if kind == UPPER:
                capitals += 1
            hashed = (hashed * 1000003 + code) & 0x3FFFFFFFFFFF
            if word_bytes + 4 > WORD:
                word_bytes = WORD + 1
            else:
                word_bytes = _append(word, word_bytes, code)
            if mode:
                tally[now] += 1
            if (expected >> now) & 1:
                if foreign > 0:
                    foreign -= 1
            elif not muted and skip == 0:
                # A letter by itself is a sign of mathematics, not a word.
                counted = 1
                if length < 3 and _spaced(now):
                    counted = 0 if length == 1 else 2
                if foreign == 0 and counted:
                    state[FOREIGN_START] = word_start
                foreign = min(foreign + counted, limits[FOREIGN_ERROR])
                if mode == 0 and _is_switch(state, foreign, limits):
                    event = True
                    state[EVENT], state[EVENT_START], state[EVENT_WHAT] = (
                        FOREIGN_SCRIPT_SEEN,
                        state[FOREIGN_START],
                        now,
                    )
        elif kind == MARK:
            skip = 1
        elif kind == APOSTROPHE:
            if length > 0 and word_bytes + 4 <= WORD:
                word_bytes = _append(word, word_bytes, code)
        # Where quotations and brackets begin and end, and what code is made of; a line break ends all but a fence.
        elif kind == NEWLINE:
            in_ticks = quoted = bracketed = 0
        elif kind == TICK:
            ticks += 1
            if ticks == 3:
                fence, in_ticks = 1 - fence, 0
            else:
                in_ticks = 1 - in_ticks
        elif kind == QUOTE:
            quoted = 0 if quoted else 1
        elif kind == OPEN:
            bracketed = 1
            if previous >= DIGIT and _spaced(script):
                code_signs = min(code_signs + CODE_SIGN, CODE_MOST)
        elif kind == CLOSE:
            bracketed = 0
        elif kind == DASH:
            is_flag = 1 if previous in (SPACE, NEWLINE, OPEN, QUOTE) else 0
        elif kind == GLUE:
            code_signs = min(code_signs + CODE_SIGN, CODE_MOST)

        if kind != TICK:
            ticks = 0
        if kind != JOINER and kind != MARK:
            previous = kind
        if code_signs > 0:
            code_signs -= 1
        # Longer than that it is no quotation, or its end was forgotten.
        if quoted > 0:
            quoted = 0 if quoted > longest else quoted + 1
        if bracketed > 0:
            bracketed = 0 if bracketed > longest else bracketed + 1
    # fmt: off
    (
        state[NEED], state[CODE], state[CHARACTER], state[LENGTH], state[CAPITALS], state[CAPITAL], state[SKIP],
        state[HASH], state[SCRIPT], state[WORD_START], state[WORD_BYTES], state[PREVIOUS], state[FENCE], state[TICKS],
        state[IN_TICKS], state[QUOTED], state[BRACKETED], state[CODE_SIGNS], state[IS_FLAG], state[FOREIGN],
        state[REST],
    ) = (
        need, code, character, length, capitals, capital, skip, hashed, script, word_start, word_bytes, previous,
        fence, ticks, in_ticks, quoted, bracketed, code_signs, is_flag, foreign, rest,
    )
    # fmt: on
    return at


@compiled
def _is_switch(state: Any, foreign: Any, limits: Any) -> Any:
    if state[WARNED]:
        return state[ERRED] == 0 and foreign >= limits[FOREIGN_ERROR]
    return foreign >= limits[FOREIGN_WARN]


@compiled
def _append(word: Any, at: Any, code: Any) -> Any:
    """UTF-8 of one character; returns the bytes used."""
    if code < 0x80:
        word[at] = code
        return at + 1
    if code < 0x800:
        word[at], word[at + 1] = 0xC0 | code >> 6, 0x80 | code & 0x3F
        return at + 2
    if code < 0x10000:
        word[at], word[at + 1], word[at + 2] = 0xE0 | code >> 12, 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
        return at + 3
    word[at], word[at + 1] = 0xF0 | code >> 18, 0x80 | code >> 12 & 0x3F
    word[at + 2], word[at + 3] = 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
    return at + 4
