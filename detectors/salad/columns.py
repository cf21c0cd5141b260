"""What the columns of the compiled functions' arrays mean; only this package touches them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from checkengine.detectors.compiled import SUMS_IN_LANES, compiled

# Columns of a token, int32.
CLASS, FORM, SCRIPT, MARK, LETTERS_HASH, EDGE, LEADING, END, LENGTH, POWER = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
FIRST_PIECE, LAST_PIECE = 10, 11
TOKEN_COLUMNS = 12
# Columns of a sequence, whole numbers.
COUNT, START, LAST_FORM, LAST_TOKEN, REMEMBERED, TOLD, EXPECTED, NEEDED = 0, 1, 2, 3, 4, 5, 6, 7
LAST_WORD, MARKS_START, FOREIGN, LETTERS, WORD_RUN = 8, 9, 10, 11, 12
PLAIN_BEFORE, FOREIGN_BYTES, FOREIGN_TOKEN, MARKED, OPEN_WORD, SCRIPT_COUNTS = 13, 14, 15, 16, 17, 18
SCRIPTS = 40
WHOLE_COLUMNS = SCRIPT_COUNTS + SCRIPTS
# Columns of a sequence, real numbers.
TRANSITIONS, CALM, ODD, WORDS, LOGITS, SHARES = 0, 1, 2, 3, 4, 5
# Columns of a token that the sequence wrote.
TOKEN, PLACE = 0, 1
# What a batch shares.
MEAN, SQUARE, WEIGHT = 0, 1, 2
# Bits of EDGE.
BEGINS_LETTER, ENDS_LETTER, BEGINS_SPACE, ENDS_SPACE, SMALL, BROKEN, PLAIN, BLANK = 1, 2, 4, 8, 16, 32, 64, 128
LETTERS_ONLY, TELLS = 256, 512
# Values of MARK.
CONTROL, RESERVED = 1, 2

LEVELS, NOT_TOLD = 10, 9
"""How much two pieces like to be neighbours (`neighbours.level_of`)."""
STATES = 2 * LEVELS
"""The same, times whether the token stood in the sequence a short while ago."""
RECENT, RECENT_PLACES = 128, 256
"""Tokens that a token is looked for in; places for them, by a hash: a newer one takes an older one's."""
REMEMBER = 128
"""Tokens in which the evidence of transitions has to add up, or it is let go: salad takes a fifth of that."""
STEEPEST = 4.0
"""Nats that one pair of neighbours counts at most against healthy text by its classes, or for it."""
SWITCH = 0.01
"""Share of the mixture's weight that is spread over all kinds at every token."""

Compile = Callable[[Callable[..., Any]], Any]

checked: Compile = partial(compiled, error_model="python")
"""As the interpreter divides: by zero is an error here."""
checked_sums: Compile = partial(compiled, error_model="python", fastmath=set(SUMS_IN_LANES))
within: Compile = partial(compiled, error_model="python", fastmath=set(SUMS_IN_LANES), inline="always")
"""Of a part of one of these: a call that is made costs more than what it does, since arrays are counted."""
