"""Which slots a kernel reads in one call, read off from its output.

With all keys zero every slot that is read gets the same weight, one in so many; with values that are one-hot codes of
the slots (or of groups of slots), the output is the number of times that each was read, over that number of reads. So
one run of a kernel tells as many slots apart as a value has dimensions, for every token and head: over-reads,
under-reads and pages in the wrong place in two or three runs, whatever the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.replay.op_call import Ints, OpCall

Attend = Callable[[OpCall], torch.Tensor]

DIRECT = 8
"""So many times the value's dimensions: fewer slots are told one by one at once, more in groups first."""
LARGEST_GROUP = 64
"""Slots in a group: half types cannot tell 64 reads from 65, and none from one in more."""
MOST_GROUPS = 64
"""Groups that are looked into; more that differ are no slip of an index."""
MOST_PIECES = 256
"""Parts of the memory that are read one by one where no slot is everybody's to read."""
MOST_TIMES = 64
"""A slot is not read more often than this; less than one part in so many of the largest share is noise."""
NO_SINK = -1.0e4


@dataclass(frozen=True, slots=True)
class Reads:
    """What was read otherwise than it may be; slots sorted, heads of the query."""

    extra: Ints
    missing: Ints
    repeated: Ints
    """Read more than once."""
    heads: tuple[int, ...]
    token: int | None
    """The first of the call's tokens that reads wrong."""
    runs: int

    @property
    def right(self) -> bool:
        return not (len(self.extra) or len(self.missing) or len(self.repeated))


def find_reads(attend: Attend, call: OpCall) -> Reads | None:
    """None where the kernel's reads cannot be read off: it is not a softmax over slots, or differs everywhere."""
    probe = _Probe(attend, call)
    totals = probe.totals()
    if totals is None:
        return None
    parts = list(probe.different(totals))
    if len(parts) > MOST_GROUPS:
        return None
    seen: list[tuple[Ints, NDArray[np.int64]]] = [(slots, probe.counts(slots, totals)) for slots in parts]
    return probe.told(seen)


class _Probe:
    def __init__(self, attend: Attend, call: OpCall) -> None:
        sinks = None if call.sinks is None else torch.full_like(call.sinks, NO_SINK)
        self.call = replace(call, keys=torch.zeros_like(call.keys), sinks=sinks)
        self.attend, self.runs = attend, 0
        size = call.block_size
        self.slots = (call.blocks[:, None] * size + np.arange(size)).astype(np.int32).ravel()
        self.width = int(call.values.shape[3])
        self.expected = expected_reads(call, self.slots)

    def weights(self, codes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Share of each code's slots in all reads, shape (tokens, heads, value_dim); `codes` of every slot, -1 none."""
        self.runs += 1
        values = torch.zeros((len(self.slots), self.call.values.shape[2], self.width), dtype=self.call.values.dtype)
        coded = np.flatnonzero(codes >= 0)
        values[torch.from_numpy(coded), :, torch.from_numpy(codes[coded])] = 1
        output = self.attend(replace(self.call, values=values.view(self.call.values.shape)))
        shares: NDArray[np.float64] = output.double().numpy()
        return shares

    def one_hot(self, slots: Ints) -> NDArray[np.float64]:
        """Shares of up to `width` slots, shape (tokens, heads, slots)."""
        codes = np.full(len(self.slots), -1, np.int64)
        codes[np.searchsorted(self.slots, slots)] = np.arange(len(slots))
        return self.weights(codes)[..., : len(slots)]

    def totals(self) -> NDArray[np.float64] | None:
        """Number of reads of each token and head: from slots that all tokens may read, else from all memory."""
        common = self.slots[self.expected.all(0)]
        if len(common):
            chosen = common[np.unique(np.linspace(0, len(common) - 1, self.width).round().astype(np.int64))]
            if (reads := counted_by(self.one_hot(chosen))) is not None:
                return reads
        pieces = range(0, len(self.slots), self.width)
        if len(pieces) > MOST_PIECES:
            return None
        return counted_by(np.concatenate([self.one_hot(self.slots[i : i + self.width]) for i in pieces], -1))

    def different(self, totals: NDArray[np.float64]) -> Iterator[Ints]:
        """Parts of the memory, up to `width` slots each, in which reads differ from what they may be."""
        pieces = [self.slots[i : i + self.width] for i in range(0, len(self.slots), self.width)]
        if len(pieces) <= DIRECT or self.width < 2:
            yield from (piece for piece in pieces if self._differs(piece, totals))
            return
        group = min(self.width, LARGEST_GROUP)
        span = group * self.width
        for first in range(0, len(self.slots), span):
            inside = np.arange(first, min(first + span, len(self.slots)))
            # Two groupings: one slot read in place of its neighbour leaves the number of a group as it was.
            for groups in ((inside - first) // group, (inside - first) % self.width):
                codes = np.full(len(self.slots), -1, np.int64)
                codes[inside] = groups
                yield from self._unlike(codes, totals)

    def _unlike(self, codes: NDArray[np.int64], totals: NDArray[np.float64]) -> Iterator[Ints]:
        counted = self.weights(codes) * totals[..., None]
        for code in range(codes.max() + 1):
            members = codes == code
            allowed = self.expected[:, members].sum(1)[:, None]
            if (np.abs(counted[..., code] - allowed) > 0.5).any():
                yield self.slots[members]

    def _differs(self, piece: Ints, totals: NDArray[np.float64]) -> bool:
        where = np.searchsorted(self.slots, piece)
        return bool((self.counts(piece, totals) != self.expected[:, where][:, None]).any())

    def counts(self, slots: Ints, totals: NDArray[np.float64]) -> NDArray[np.int64]:
        """Reads of each slot, shape (tokens, heads, slots)."""
        counted: NDArray[np.int64] = np.rint(self.one_hot(slots) * totals[..., None]).astype(np.int64)
        return counted

    def told(self, seen: list[tuple[Ints, NDArray[np.int64]]]) -> Reads:
        extra, missing, repeated = ([np.empty(0, np.int32)] for _ in range(3))
        heads: set[int] = set()
        tokens: set[int] = set()
        for slots, counts in seen:
            may = self.expected[:, np.searchsorted(self.slots, slots)][:, None]
            wrong = counts != may
            extra.append(slots[((counts > 0) & ~may).any((0, 1))])
            missing.append(slots[((counts == 0) & may).any((0, 1))])
            repeated.append(slots[((counts > 1) & may).any((0, 1))])
            tokens |= set(np.flatnonzero(wrong.any((1, 2))).tolist())
            heads |= set(np.flatnonzero(wrong.any((0, 2))).tolist())
        one, two, three = (np.unique(np.concatenate(part)).astype(np.int32) for part in (extra, missing, repeated))
        return Reads(one, two, three, tuple(sorted(heads)), min(tokens, default=None), self.runs)


def counted_by(shares: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Number of reads by which each token and head divides: a slot that is read once has the smallest share. None
    where these are no shares, or none of the slots is read."""
    most = shares.max(-1, keepdims=True)
    if not np.isfinite(shares).all() or (shares < -1e-6).any() or (most <= 0).any():
        return None
    reads: NDArray[np.float64] = 1 / np.where(shares > most / MOST_TIMES, shares, np.inf).min(-1)
    return reads


def positions_of(call: OpCall, slots: Ints) -> NDArray[np.int64]:
    """Position of each slot in the row's table, past its end too; -1 where it lies in none of its blocks."""
    size = call.block_size
    order = np.argsort(call.table, kind="stable")
    table = call.table[order]
    blocks = slots // size
    at = np.minimum(np.searchsorted(table, blocks), len(table) - 1)
    own = order[at] * size + slots % size
    found: NDArray[np.int64] = np.where(table[at] == blocks, own, -1).astype(np.int64)
    return found


def expected_reads(call: OpCall, slots: Ints) -> NDArray[np.bool_]:
    """Shape (tokens, slots): may this token read this slot?"""
    own = positions_of(call, slots)[None]
    last = np.arange(call.length - len(call.query), call.length)[:, None]
    may = (own >= 0) & (own <= last)
    allowed: NDArray[np.bool_] = may & (own > last - call.window) if call.window else may
    return allowed
