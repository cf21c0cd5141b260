"""What a reader does at each character: a letter of a script, the end of a word, a quotation, a sign of code."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.language.scripts import script_table

(
    OTHER, SPACE, NEWLINE, MARK, JOINER, APOSTROPHE, OPEN, CLOSE, QUOTE, TICK, STOP, DASH, GLUE, DIGIT, LOWER, UPPER,
) = range(16)  # fmt: skip
"""Letters come last, before them what makes a word that touches it no prose; the reader compares."""

_SIGNS = {
    NEWLINE: "\n\r\v\f\u0085\u2028\u2029",
    APOSTROPHE: "'\u2019\u02bc",
    # A cell of a table is set apart from the text like a bracket.
    OPEN: "([\t|\uff08\u3010\uff3b",
    CLOSE: ")]\uff09\u3011\uff3d",
    QUOTE: '"\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a\u300c\u300d\u300e\u300f\u300a\u300b\u3008\u3009\uff02',
    TICK: "`",
    STOP: ".,:;",
    DASH: "-",
    # Signs of code, paths and addresses; a word that touches one is no prose.
    GLUE: "_@#$\\/=<>~^&+{}",
    JOINER: "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff",
}


@cache
def kind_table() -> NDArray[np.uint8]:
    """Shape (code points,): the constants above; a letter without case is LOWER."""
    table = np.where(script_table() > 1, LOWER, OTHER).astype(np.uint8)
    for code in range(0x2100):
        character = chr(code)
        if table[code] == LOWER:
            if character.isupper():
                table[code] = UPPER
        elif character.isspace():
            table[code] = SPACE
        elif character.isdigit():
            table[code] = DIGIT
    table[0x300:0x370] = MARK
    for kind, signs in _SIGNS.items():
        table[[ord(sign) for sign in signs]] = kind
    table.flags.writeable = False
    return table
