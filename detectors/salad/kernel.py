"""One compiled call a step: every row's token goes through its sequence's state, all of it in flat arrays.

What the columns mean is named here; only here and in `batch` are they touched.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

# Columns of a token, int32.
CLASS, FORM, SCRIPT, MARK, LETTERS_HASH, EDGE, LEADING, END, LENGTH, POWER = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
FIRST_PIECE, LAST_PIECE = 10, 11
TOKEN_COLUMNS = 12
# Columns of a sequence, whole numbers.
COUNT, START, LAST_FORM, LAST_TOKEN, REMEMBERED, TOLD, EXPECTED, NEEDED = 0, 1, 2, 3, 4, 5, 6, 7
LAST_WORD, MARKS, MARKS_START, FOREIGN, LETTERS, WORD_RUN = 8, 9, 10, 11, 12, 13
PLAIN_BEFORE, FOREIGN_BYTES, FOREIGN_TOKEN, MARKED, OPEN_WORD, SCRIPT_COUNTS = 14, 15, 16, 17, 18, 19
SCRIPTS, WHOLE_COLUMNS = 40, SCRIPT_COUNTS + 40
# Columns of a sequence, real numbers.
TRANSITIONS, CALM, ODD, WORDS, LOGITS, SHARES = 0, 1, 2, 3, 4, 5
# What a batch shares.
MEAN, SQUARE, WEIGHT = 0, 1, 2
# Bits of EDGE.
BEGINS_LETTER, ENDS_LETTER, BEGINS_SPACE, ENDS_SPACE, SMALL, BROKEN, PLAIN, BLANK = 1, 2, 4, 8, 16, 32, 64, 128
LETTERS_ONLY, TELLS = 256, 512
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
RESERVED_NATS, CONTROL_NATS, BROKEN_NATS, FOREIGN_NATS, STRANGE_NATS = 10.0, 6.5, 4.0, 16.0, 2.5
PIECE, FIRST_SCRIPT = 1, 2
"""Values of SCRIPT: a piece of a character that does not tell, and from where on it is a writing system."""
FOREIGN_LEAST = 4
"""Bytes of a foreign word: a single Greek letter is a formula."""
NATIVE_BYTES = 96
"""Of one script in a row that make it the sequence's own: a turn of language is no salad..."""
APART_BYTES = 5
NATIVE_LETTERS = 40
"""... or half of so many tokens."""
WORD_NATS = (-0.6, 1.5, 4.0, 0.6)
"""Of two function words in a row: as in healthy text, never seen but rare anyway, avoided, rarer than by chance..."""
WORD_FADE = 0.45
"""... and what any other word or token takes away."""
NEWS_MOST = 2.5
"""Nats that it tells at most whether two pieces were ever neighbours in healthy text."""
BLOOM_SHIFTS = (0, 20, 40)
HASH_BASE, HASH_PRIME = 257, (1 << 31) - 1
LOGITS_MOST = 10.0
"""Nats that entropy tells at most, and never more than the text itself does: alone it reports nothing."""
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
def follow(at: Any, known: Any, new: Any, news: Any, shares: Any) -> Any:
    """Probability of a pair of classes under a mixture of kinds, known[at], and together with whether the pieces are
    new neighbours (`news` 1 or 0; -1: not known), new[at]. The mixture's weights move in place."""
    kinds = known.shape[1]
    alone = total = np.float32(0.0)
    for kind in range(kinds):
        alone += shares[kind] * known[at, kind]
    if news < 0:
        total = alone
        for kind in range(kinds):
            shares[kind] *= known[at, kind]
    else:
        for kind in range(kinds):
            shares[kind] *= known[at, kind] * (new[at, kind] if news else np.float32(1.0) - new[at, kind])
            total += shares[kind]
    scale, spread = np.float32(1.0 - SWITCH) / total, np.float32(SWITCH / kinds)
    for kind in range(kinds):
        shares[kind] = shares[kind] * scale + spread
    return alone, total


@njit(cache=True)  # type: ignore[untyped-decorator]
def mixed(before: Any, token: Any) -> Any:
    found = np.uint64((np.int64(before) << 24) | token) * np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(29)
    return found * np.uint64(0xBF58476D1CE4E5B9)


@njit(cache=True)  # type: ignore[untyped-decorator]
def is_new(before: Any, token: Any, seen: Any) -> int:
    """1 where the two pieces were never neighbours in the text that `seen` was filled with (a Bloom filter, 1970)."""
    drawn, mask = mixed(before, token), np.uint64(8 * len(seen) - 1)
    for shift in BLOOM_SHIFTS:
        bit = (drawn >> np.uint64(shift)) & mask
        if not (seen[bit >> np.uint64(3)] >> (bit & np.uint64(7))) & np.uint8(1):
            return 1
    return 0


@njit(cache=True)  # type: ignore[untyped-decorator]
def fill_seen(before: Any, tokens: Any, seen: Any) -> None:
    """Puts pairs into the filter, whose size is a power of two."""
    mask = np.uint64(8 * len(seen) - 1)
    for at in range(len(tokens)):
        drawn = mixed(before[at], tokens[at])
        for shift in BLOOM_SHIFTS:
            bit = (drawn >> np.uint64(shift)) & mask
            seen[bit >> np.uint64(3)] |= np.uint8(1) << np.uint8(bit & np.uint64(7))


@njit(cache=True)  # type: ignore[untyped-decorator]
def all_new(before: Any, tokens: Any, seen: Any) -> Any:
    """`is_new` of many pairs."""
    found = np.zeros(len(tokens), np.uint8)
    for at in range(len(tokens)):
        found[at] = is_new(before[at], tokens[at], seen)
    return found


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def transition(weight: Any, news: Any, pair: Any, token: Any, ceiling: Any, whole: Any, real: Any, memory: Any) -> None:
    """`weight`: nats of the pair of classes; `news`: what the pieces' being neighbours adds to them."""
    nats = max(weight, np.float32(-STEEPEST))
    if weight > 0.0 or news > 0.0:
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
                again *= np.float32(KEEP_SAME_TOKEN)
        if known < REMEMBER:
            memory[known, 0], memory[known, 1] = pair, token
            whole[REMEMBERED] = known + 1
        if weight > 0.0:
            nats = min(weight, ceiling[pair]) * keep * again
        if news > 0.0:
            news *= again
    elif real[TRANSITIONS] == 0.0:
        return
    real[TRANSITIONS] += nats + news
    if real[TRANSITIONS] <= 0.0:
        let_go(whole, real)


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
def word(row: Any, known: Any, whole: Any, real: Any) -> None:
    """Puts words together of tokens, by a rolling hash, and weighs two function words that follow each other."""
    edge = row[EDGE]
    if edge & LETTERS_ONLY and not edge & BEGINS_SPACE and whole[OPEN_WORD] >= 0:
        whole[OPEN_WORD] = (whole[OPEN_WORD] * row[POWER] + row[LETTERS_HASH]) % HASH_PRIME
        return
    if whole[OPEN_WORD] >= 0:
        neighbour(number_of(whole[OPEN_WORD], known), known, whole, real)
    whole[OPEN_WORD] = row[LETTERS_HASH] if edge & LETTERS_ONLY else -1
    if not edge & BEGINS_SPACE:
        whole[LAST_WORD] = -1
    if not edge & LETTERS_ONLY:
        real[WORDS] = max(real[WORDS] - np.float32(WORD_FADE), np.float32(0.0))
    if real[WORDS] == 0.0:
        whole[WORD_RUN] = whole[COUNT] - 1


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def number_of(hashed: Any, known: Any) -> int:
    """Of a function word; -1 for other words."""
    places = len(known.word_hashes)
    at = hashed % places
    while known.word_hashes[at] >= 0:
        if known.word_hashes[at] == hashed:
            return int(known.word_numbers[at])
        at = (at + 1) % places
    return -1


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def neighbour(number: Any, known: Any, whole: Any, real: Any) -> None:
    before = whole[LAST_WORD]
    whole[LAST_WORD] = number
    if number < 0:
        real[WORDS] = max(real[WORDS] - np.float32(WORD_FADE), np.float32(0.0))
    elif before >= 0 and before != number:  # a word twice is repetition, as in a refrain
        state = (known.word_pairs[before, number >> 2] >> (2 * (number & 3))) & 3
        real[WORDS] = max(real[WORDS] + np.float32(WORD_NATS[state]), np.float32(0.0))


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def push(
    slot: Any,
    token: Any,
    entropy: Any,
    strange: Any,
    known: Any,
    wholes: Any,
    reals: Any,
    memories: Any,
    shared: Any,
) -> Any:
    """One token of one sequence; returns all evidence in nats. `strange` is 1 where the tokenizer cuts elsewhere."""
    whole, real, memory = wholes[slot], reals[slot], memories[slot]
    size = len(known.tokens) - 1
    row = known.tokens[token] if 0 <= token < size else known.tokens[size]
    whole[COUNT] += 1
    pair = whole[LAST_FORM] + row[CLASS]
    split = SHARES + known.healthy.shape[1]
    before, news = whole[LAST_TOKEN], -1
    if len(known.seen) and 0 <= before < size and row[EDGE] & known.tokens[before, EDGE] & TELLS:
        news = is_new(known.tokens[before, LAST_PIECE], row[FIRST_PIECE], known.seen)
    salad, salad_both = follow(row[CLASS], known.salad, known.salad_new, news, real[split:])
    healthy, healthy_both = follow(pair, known.healthy, known.healthy_new, news, real[SHARES:split])
    weight = np.float32(math.log(salad / healthy))
    told = np.float32(0.0)
    if news >= 0:
        told = min(
            max(np.float32(math.log(salad_both / healthy_both)) - weight, np.float32(-NEWS_MOST)), np.float32(NEWS_MOST)
        )
    weight -= real[CALM]
    if strange:
        weight += np.float32(STRANGE_NATS)
    transition(weight, told, pair, token, known.ceiling, whole, real, memory)

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

    word(row, known, whole, real)
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
    return text + min(real[LOGITS], text)


@njit(cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def push_batch(
    slots: Any,
    ids: Any,
    entropies: Any,
    strange: Any,
    threshold: Any,
    fired: Any,
    known: Any,
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
            known,
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
    known: Any,
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
                known,
                wholes,
                reals,
                memories,
                shared,
            )
            if evidence > trace[text, 0]:
                trace[text, 0] = evidence
                for source in range(4):
                    trace[text, 1 + source] = reals[0, (TRANSITIONS, ODD, WORDS, LOGITS)[source]]
