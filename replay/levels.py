"""How much of the KV memory a capture clones: as much as its budget allows, and it says how much that was.

    L0  none: what the recorder holds of the window
    L1  the tail of the suspect's memory: its last page, and the pages before and behind it in memory
    L2  all pages of the suspect sequences
    L3  also those of every sequence that wrote into one of these (a shared prefix), transitively

L2 and L3 can be replayed; L1 and L0 are for people, and for counting.
"""

from __future__ import annotations

from typing import Literal

Level = Literal["L0", "L1", "L2", "L3"]
LEVELS: tuple[Level, ...] = ("L3", "L2", "L1", "L0")
"""From the most to the least."""
REPLAYABLE: frozenset[str] = frozenset({"L2", "L3"})
