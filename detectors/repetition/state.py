"""What is kept of one stream: 62.3 KiB in one record."""

from __future__ import annotations

import numpy as np

RING = 8192
"""Units kept: twice the longest period, for the copy before the one before."""
EIGHTS = 8192
FOURS = 4096
PAIRS = 2048
LINKS = 1024

WORD, SIGN, BLANK, NUMBER, CODE, INDENT = range(6)
"""Kinds of a unit; from NUMBER on they are of code and tables rather than of prose."""
WEIGHT_BITS, KIND_BITS = 6, 3
UNIT_BITS = WEIGHT_BITS + KIND_BITS
WEIGHT_MASK, KIND_MASK = (1 << WEIGHT_BITS) - 1, (1 << KIND_BITS) - 1

CYCLE_COUNTERS = ("position", "last_eight", "lag", "run", "run_weight", "wordy")
LAG_COUNTERS = ("last_unit", "aligned", "first_lag", "aligned_since", "likeness")
LIKENESS_COUNTERS = ("copied", "copied_code", "new", "odd", "returned", "fresh", "numbered", "lines")
REUSE_COUNTERS = ("last_four", "reuse", "reuse_since", "reused", "unused", "reused_code")
STAGE_COUNTERS = ("blanks", "calm", "stage", "quiet")
COUNTERS = (*CYCLE_COUNTERS, *LAG_COUNTERS, *LIKENESS_COUNTERS, *REUSE_COUNTERS, *STAGE_COUNTERS)

STREAM = np.dtype(
    [(name, np.int64) for name in COUNTERS]
    + [("ring", np.int32, (RING,)), ("eights", np.uint16, (EIGHTS,)), ("fours", np.uint16, (FOURS,))]
    + [("pairs", np.uint16, (PAIRS,)), ("links", np.uint16, (LINKS,))],
    align=True,
)
"""`ring`: the last units; `eights`, `fours`, `pairs`: where an 8-gram, a 4-gram, a pair stood last (low 16 bits of its
position); `links`: how far back the copy of each of the last units stood."""
