"""What kind of fault it is, and how it lives."""

from __future__ import annotations

from enum import StrEnum


class FaultClass(StrEnum):
    """By what was read or computed wrong; a bug's place in the code is another question."""

    OVER_READ = "over-read"
    """Slots past the row's end: memory that it does not own."""
    UNDER_READ = "under-read"
    """Slots that the row may read, and the kernel does not."""
    WRONG_PAGE = "wrong page"
    """A page of the row's own twice, or one that nobody owns, in the place of the right one."""
    FOREIGN_PAGE = "another sequence's page"
    WINDOW_EDGE = "wrong window edge"
    """Slots of the row's own that a query may not see, before its window or after its own position; or one that it may,
    left out where an edge moves along with the row's end."""
    POSITION = "wrong rotary position"
    SCALE = "wrong scale"
    """Scores or values are those of another factor, on all pages or on some."""
    ARITHMETIC = "wrong arithmetic"
    """Beyond the rounding bound, and none of the others explains it."""
    NON_FINITE = "non-finite"
    MASKED_READ = "NaN-unsafe masked read"
    WRITE = "wrong KV write"
    """The cache writer is told a wrong slot, or given wrong bytes."""
    STALE_KV = "stale or overwritten KV"
    """Memory holds other bytes than the sequence's steps wrote; the code that runs is right."""
    STOP = "stop path"
    PLACEMENT = "depends on physical placement"
    ROWS = "rows mixed up"
    """A row's result depends on, or is, another row's."""
    SAMPLER = "sampler"
    NONDETERMINISM = "run-to-run nondeterminism"
    TRANSIENT = "transient"
    WEIGHTS = "weights changed"


class Persistence(StrEnum):
    DETERMINISTIC = "deterministic"
    """The same inputs give it again on every run: code."""
    PERSISTENT = "persistent"
    """It lives in memory, in weights or in a device, and stays until that is renewed."""
    TRANSIENT = "transient"
    """It came once; the same bytes do not give it again."""
