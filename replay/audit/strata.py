"""Where silent faults live: what a row of a step is called by, so that rare kinds of rows are audited too.

A row may lie in several strata. They are told by lengths, blocks and batch only, never by content.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from checkengine.replay.record import Ints, StepRecord

Bits = NDArray[np.uint32]
"""Shape (rows,): bit i of a row is set where the row lies in stratum i."""

EDGES = (("start", 1), ("second", 2), ("full", 0), ("end", -1))
"""Residues of a length modulo a page or a tile, at whose edges a bound is off by one."""
GRAPH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ALL_ROWS = "all rows"
NAMES = (
    ALL_ROWS,
    *(f"page {name}" for name, _ in EDGES),
    *(f"tile {name}" for name, _ in EDGES),
    "chunk edge",
    "prefix hit",
    "resumed",
    "reused block",
    "fresh length",
)
CHUNK_EDGE, PREFIX_HIT, RESUMED, REUSED, FRESH = (np.uint32(1 << NAMES.index(name)) for name in NAMES[-5:])
ROWS_KNOWN = 1 << 16
"""Sequences whose last length is remembered; one beyond counts as new when it comes back."""
MOST_BUCKETS = 32 - len(NAMES)


class Strata:
    """Call `of` once a step, in order: some strata are told by what came before.

    `page start`, `second`, `full`, `end`: length modulo `block_size` is 1, 2, 0, block_size - 1; `tile …`: modulo
    `tile`. `chunk edge`: a prefill chunk that is not the prompt's first. `prefix hit`: a first step that begins behind
    tokens of others. `resumed`: tokens are computed again, after a preemption. `reused block`: a block that another
    sequence had before came into its table. `fresh length`: no row had this length yet. `batch N`: the step's rows,
    padded to the next of `buckets` (graph capture sizes).
    """

    def __init__(self, block_size: int, *, tile: int = 128, buckets: Sequence[int] = GRAPH_BUCKETS) -> None:
        if block_size < 1 or tile < 1:
            raise ValueError(f"block_size and tile must be at least 1, got {block_size} and {tile}")
        if not 1 <= len(buckets) < MOST_BUCKETS:
            raise ValueError(f"between 1 and {MOST_BUCKETS - 1} buckets, got {len(buckets)}")
        self.buckets = tuple(sorted(buckets))
        self.names = (*NAMES, *(f"batch {size}" for size in self.buckets), f"batch above {self.buckets[-1]}")
        self._moduli = ("page", block_size), ("tile", tile)
        self._by_length: Bits = np.empty(0, np.uint32)
        self._owner: Ints = np.full(1024, -1, np.int32)
        """By block: the handle that was given it last."""
        self._known: Ints = np.full(ROWS_KNOWN, -1, np.int32)
        self._ends: Ints = np.zeros(ROWS_KNOWN, np.int32)

    def of(self, record: StepRecord) -> Bits:
        """Strata of every row of the record."""
        starts, handles = record.starts, record.handles
        lengths = starts + record.query_lengths
        bits = self._of_lengths(lengths)
        bits |= self._bucket(len(handles))
        places = handles & (ROWS_KNOWN - 1)
        known = self._known[places] == handles
        begun = starts > 0
        bits[begun & (record.query_lengths > 1)] |= CHUNK_EDGE
        bits[begun & ~known] |= PREFIX_HIT
        bits[known & (starts < self._ends[places])] |= RESUMED
        self._known[places], self._ends[places] = handles, lengths
        if len(record.block_changes):
            reused = self._reused(record.block_changes)
            if len(reused):
                bits[np.isin(handles, reused)] |= REUSED
        return bits

    def counts(self, bits: Bits) -> NDArray[np.int64]:
        """Rows in each stratum, aligned with `names`."""
        single = np.unpackbits(bits.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little", count=len(self.names))
        counts: NDArray[np.int64] = single.sum(0, dtype=np.int64)
        return counts

    def named(self, bits: int) -> list[str]:
        return [name for index, name in enumerate(self.names) if bits >> index & 1]

    def _of_lengths(self, lengths: Ints) -> Bits:
        longest = int(lengths.max(initial=0))
        if longest >= len(self._by_length):
            self._grow(longest)
        bits = self._by_length[lengths]
        self._by_length[lengths] = bits & ~FRESH
        return bits

    def _grow(self, longest: int) -> None:
        lengths = np.arange(len(self._by_length), max(4096, 2 * longest))
        bits = np.full(len(lengths), 1 | FRESH, np.uint32)
        for kind, modulus in self._moduli:
            for name, residue in EDGES:
                bits[lengths % modulus == residue % modulus] |= np.uint32(1 << NAMES.index(f"{kind} {name}"))
        self._by_length = np.concatenate([self._by_length, bits])

    def _bucket(self, rows: int) -> np.uint32:
        index = next((i for i, size in enumerate(self.buckets) if rows <= size), len(self.buckets))
        return np.uint32(1 << (len(NAMES) + index))

    def _reused(self, changes: Ints) -> Ints:
        """Handles that were given a block which another sequence had before."""
        given = changes[changes[:, 2] >= 0]
        handles, blocks = given[:, 0], given[:, 2]
        most = int(blocks.max(initial=0))
        if most >= len(self._owner):
            self._owner = np.concatenate([self._owner, np.full(most + 1, -1, np.int32)])
        before = self._owner[blocks]
        self._owner[blocks] = handles
        reused: Ints = handles[(before >= 0) & (before != handles)]
        return reused
