"""One compiled call a step: every row's token goes through its sequence's state, all of it in flat arrays.

What the columns mean is named here; only here and in `batch` are they touched.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

# Columns of a token, int32.
CLASS, FORM, SCRIPT, MARK, WORD, EDGE, LEADING, END, LENGTH = 0, 1, 2, 3, 4, 5, 6, 7, 8
TOKEN_COLUMNS = 9
# Columns of a sequence, whole numbers.
COUNT, START, LAST_FORM, LAST_TOKEN, REMEMBERED, TOLD, EXPECTED, NEEDED = 0, 1, 2, 3, 4, 5, 6, 7
LAST_WORD, MARKS, MARKS_START, FOREIGN, LETTERS, WORD_RUN = 8, 9, 10, 11, 12, 13
PLAIN_BEFORE, FOREIGN_BYTES, FOREIGN_TOKEN, MARKED, SCRIPT_COUNTS = 14, 15, 16, 17, 18
SCRIPTS = 40
WHOLE_COLUMNS = SCRIPT_COUNTS + SCRIPTS
# Columns of a sequence, real numbers.
TRANSITIONS, CALM, ODD, WORDS, LOGITS, SHARES = 0, 1, 2, 3, 4, 5
# What a batch shares.
MEAN, SQUARE, WEIGHT = 0, 1, 2
# Bits of EDGE.
BEGINS_LETTER, ENDS_LETTER, BEGINS_SPACE, ENDS_SPACE, SMALL, BROKEN, PLAIN, BLANK = 1, 2, 4, 8, 16, 32, 64, 128
# Values of MARK.
CONTROL, RESERVED = 1, 2

REMEMBER = 128
"""Tokens in which the evidence of transitions has to add up, or it is let go: salad takes a fifth of that."""
STEEPEST = 4.0
"""Nats that one pair of neighbours counts at most, for or against."""
SWITCH = 0.01
"""Share of the mixture's weight that is spread over all kinds at every token."""
KEEP_SAME_PAIR, KEEP_SAME_TOKEN = 0.6, 0.5
"""What is left of evidence that repeats itself."""
FADE = 0.12
"""Nats that marks lose with every token: a hundred tokens forget what a few of them told."""
RESERVED_NATS, CONTROL_NATS, BROKEN_NATS, FOREIGN_NATS, STRANGE_NATS = 10.0, 6.5, 4.0, 14.5, 2.5
PIECE, FIRST_SCRIPT = 1, 2
"""Values of SCRIPT: a piece of a character that does not tell, and from where on it is a writing system."""
FOREIGN_LEAST = 4
"""Bytes of a foreign word: a single Greek letter is a formula."""
NATIVE_BYTES = 96
"""Of one script in a row that make it the sequence's own: a turn of language is no salad..."""
APART_BYTES = 5
NATIVE_LETTERS = 40
"""... or half of so many tokens."""
WORD_SEEN, WORD_NEW, WORD_DEPLETED, WORD_FADE = -0.8, 1.2, 3.5, 0.4
"""Nats of two function words in a row: as in healthy text, never seen but rare anyway, or avoided; and what any other
token takes away."""
LOGITS_MOST = 10.0
"""Nats that entropy tells at most: alone it reports nothing."""
ENTROPY_SHIFT = 1.2
"""Standard deviations that salad lies above the model's mean entropy: a Gaussian's likelihood ratio."""
ENTROPY_STEEPEST = 1.5
PRIOR_MEAN, PRIOR_DEVIATION, PRIOR_WEIGHT = 1.1, 1.2, 256.0
"""Of the entropy of a healthy model in nats, before it has been measured, worth so many tokens."""
MEMORY_TOKENS = 65536.0
"""The baseline follows the model over so many tokens."""


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def let_go(whole: Any, real: Any) -> None:
    real[TRANSITIONS] = 0.0
    whole[REMEMBERED] = 0


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def follow(at: Any, known: Any, shares: Any) -> Any:
    """Probability under a mixture of kinds, whose probabilities are known[at]; its weights move in place."""
    kinds = known.shape[1]
    total = np.float32(0.0)
    for kind in range(kinds):
        total += shares[kind] * known[at, kind]
    scale, spread = np.float32(1.0 - SWITCH) / total, np.float32(SWITCH / kinds)
    for kind in range(kinds):
        shares[kind] = shares[kind] * known[at, kind] * scale + spread
    return total


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def transition(weight: Any, pair: Any, token: Any, ceiling: Any, whole: Any, real: Any, memory: Any) -> None:
    if weight <= 0.0:
        if real[TRANSITIONS] > 0.0:
            real[TRANSITIONS] += max(weight, np.float32(-STEEPEST))
            if real[TRANSITIONS] <= 0.0:
                let_go(whole, real)
        return
    if real[TRANSITIONS] > 0.0 and whole[COUNT] - whole[START] > REMEMBER:
        let_go(whole, real)
    if real[TRANSITIONS] == 0.0:
        whole[START] = whole[COUNT] - 1
        whole[REMEMBERED] = 0
    known = whole[REMEMBERED]
    keep, again = np.float32(1.0), np.float32(1.0)
    for at in range(known):
        if memory[at, 0] == pair:
            keep *= np.float32(KEEP_SAME_PAIR)
        if memory[at, 1] == token:
            again = np.float32(KEEP_SAME_TOKEN)
    if known < REMEMBER:
        memory[known, 0], memory[known, 1] = pair, token
        whole[REMEMBERED] = known + 1
    real[TRANSITIONS] += min(weight, ceiling[pair]) * keep * again


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
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


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
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


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def new_mark(token: Any, whole: Any, real: Any) -> bool:
    """False where this token told already: the same foreign name again and again is no salad."""
    bit = np.int64(1) << (token % 63)
    known = real[ODD] > 0.0 and whole[MARKED] & bit != 0
    whole[MARKED] = (whole[MARKED] if real[ODD] > 0.0 else 0) | bit
    return not known


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
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


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def push(
    slot: Any,
    token: Any,
    entropy: Any,
    strange: Any,
    tokens: Any,
    healthy: Any,
    salad: Any,
    ceiling: Any,
    word_pairs: Any,
    wholes: Any,
    reals: Any,
    memories: Any,
    shared: Any,
) -> Any:
    """One token of one sequence; returns all evidence in nats. `strange` is 1 where the tokenizer cuts elsewhere."""
    whole, real, memory = wholes[slot], reals[slot], memories[slot]
    size = len(tokens) - 1
    row = tokens[token] if 0 <= token < size else tokens[size]
    whole[COUNT] += 1
    pair = whole[LAST_FORM] + row[CLASS]
    split = SHARES + healthy.shape[1]
    likely = follow(row[CLASS], salad, real[split:]) / follow(pair, healthy, real[SHARES:split])
    weight = np.float32(math.log(likely)) - real[CALM]
    if strange:
        weight += np.float32(STRANGE_NATS)
    transition(weight, pair, token, ceiling, whole, real, memory)

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

    word = row[WORD]
    if word >= 0 and word == whole[LAST_WORD]:
        pass  # repetition, as in a refrain
    elif word >= 0 and whole[LAST_WORD] >= 0:
        known = (word_pairs[whole[LAST_WORD], word >> 2] >> (2 * (word & 3))) & 3
        nats = WORD_DEPLETED if known == 2 else WORD_NEW if known == 1 else WORD_SEEN
        real[WORDS] = max(real[WORDS] + np.float32(nats), np.float32(0.0))
    elif word < 0:
        real[WORDS] = max(real[WORDS] - np.float32(WORD_FADE), np.float32(0.0))
    if real[WORDS] == 0.0:
        whole[WORD_RUN] = whole[COUNT]
    whole[LAST_WORD] = word
    whole[LAST_FORM], whole[LAST_TOKEN] = row[FORM], token

    text = real[TRANSITIONS] + real[ODD] + real[WORDS]
    if entropy >= 0.0:
        deviation = math.sqrt(max(shared[SQUARE] - shared[MEAN] * shared[MEAN], 0.05))
        ratio = ENTROPY_SHIFT * ((entropy - shared[MEAN]) / deviation - 0.5 * ENTROPY_SHIFT)
        told = real[LOGITS] + np.float32(min(max(ratio, -ENTROPY_STEEPEST), ENTROPY_STEEPEST))
        real[LOGITS] = min(max(told, np.float32(0.0)), np.float32(LOGITS_MOST))
        if text < 6.0:
            step = 1.0 / (shared[WEIGHT] + 1.0)
            shared[MEAN] += step * (entropy - shared[MEAN])
            shared[SQUARE] += step * (entropy * entropy - shared[SQUARE])
            shared[WEIGHT] = min(shared[WEIGHT] + 1.0, MEMORY_TOKENS)
    return text + (real[LOGITS] if text > 0.0 else np.float32(0.0))


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def push_batch(
    slots: Any,
    ids: Any,
    entropies: Any,
    strange: Any,
    threshold: Any,
    fired: Any,
    tokens: Any,
    healthy: Any,
    salad: Any,
    ceiling: Any,
    word_pairs: Any,
    wholes: Any,
    reals: Any,
    memories: Any,
    shared: Any,
) -> int:
    """A token of each slot, in order; fills `fired` with the rows that reach the threshold for the first time."""
    count = 0
    for row in range(len(slots)):
        slot = slots[row]
        if slot < 0 or wholes[slot, TOLD]:
            continue
        evidence = push(
            slot,
            ids[row],
            entropies[row] if len(entropies) else np.float32(-1.0),
            strange[row] if len(strange) else 0,
            tokens,
            healthy,
            salad,
            ceiling,
            word_pairs,
            wholes,
            reals,
            memories,
            shared,
        )
        if evidence >= threshold:
            wholes[slot, TOLD] = 1
            fired[count] = row
            count += 1
    return count


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def scan(
    ids: Any,
    first: Any,
    trace: Any,
    fresh_whole: Any,
    fresh_real: Any,
    tokens: Any,
    healthy: Any,
    salad: Any,
    ceiling: Any,
    word_pairs: Any,
) -> None:
    """Benchmarks: highest evidence, and the highest of each source, of every text; `trace` has shape (texts, 5)."""
    wholes, reals = fresh_whole.copy().reshape(1, -1), fresh_real.copy().reshape(1, -1)
    memories = np.zeros((1, REMEMBER, 2), np.int32)
    shared = np.zeros(3)
    for text in range(len(first) - 1):
        wholes[0], reals[0] = fresh_whole, fresh_real
        for at in range(first[text], first[text + 1]):
            evidence = push(
                0,
                ids[at],
                np.float32(-1.0),
                0,
                tokens,
                healthy,
                salad,
                ceiling,
                word_pairs,
                wholes,
                reals,
                memories,
                shared,
            )
            if evidence > trace[text, 0]:
                trace[text, 0] = evidence
                for source in range(4):
                    trace[text, 1 + source] = reals[0, (TRANSITIONS, ODD, WORDS, LOGITS)[source]]
