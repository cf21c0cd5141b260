"""What kind of wrong a planted fault is: what a verdict on it should say."""

from __future__ import annotations

from enum import StrEnum


class FaultClass(StrEnum):
    OVER_READ = "over-read"
    """Attention reads slots that the row does not own."""
    UNDER_READ = "under-read"
    """Attention leaves out slots that the row owns."""
    WRONG_PAGE = "wrong page"
    """A page in place of the row's own: not another sequence's, or whoever's."""
    FOREIGN_PAGE = "another sequence's page"
    WINDOW_EDGE = "wrong window edge"
    POSITION = "wrong rotary position"
    SCALE = "wrong scale"
    MASKED_READ = "NaN-unsafe masked read"
    NON_FINITE = "non-finite"
    NONDETERMINISM = "run-to-run nondeterminism"
    ARITHMETIC = "wrong arithmetic"
    """Right slots, wrong formula: another head's keys, no soft cap, no sink."""
    ROWS = "rows mixed up"
    """A row's result depends on, or is, another row's."""
    WRITE = "wrong KV write"
    """The cache writer is told a wrong slot, or given wrong bytes."""
    STALE_KV = "stale or overwritten KV"
    """Memory holds other bytes than the sequence's steps wrote; the code that runs is right."""
    STOP = "stop path"
    SAMPLER = "sampler"
