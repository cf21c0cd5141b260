"""What is taken away from a call, one pass a dimension. Each gives a case that shows the fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from checkengine.replay.minimise.call_oracle import Accept, Case
from checkengine.replay.minimise.reduce import keep_least, least_number
from checkengine.replay.minimise.values import SYNTHETIC
from checkengine.replay.op_call import OpCall
from checkengine.replay.record import Ints


def fewer_groups(case: Case, accept: Accept) -> Case:
    """One KV head with its query heads: the first that shows the fault, else as few as do."""
    count = case.call.keys.shape[2]
    size = case.call.query.shape[1] // count
    guilty = [g for g in range(count) if case.changed is None or case.changed[:, g * size : (g + 1) * size].any()]

    def with_groups(groups: Sequence[int]) -> OpCall:
        return with_heads(case.call, [g * size + m for g in groups for m in range(size)], groups)

    return fewest(case, accept, range(count), guilty[:1], with_groups)


def fewer_heads(case: Case, accept: Accept) -> Case:
    """One query head, where one KV head is left."""
    if case.call.keys.shape[2] != 1:
        return case
    count = case.call.query.shape[1]
    guilty = [h for h in range(count) if case.changed is None or case.changed[:, h].any()]
    return fewest(case, accept, range(count), guilty[:1], lambda heads: with_heads(case.call, heads, [0]))


def fewest(case: Case, accept: Accept, items: Sequence[int], likely: Sequence[int], call_of: Any) -> Case:
    """Few of some heads, the likely ones tried first."""
    best = case
    if len(items) < 2:
        return best

    def shows(chosen: Sequence[int]) -> bool:
        nonlocal best
        found = accept(case.but(call_of(list(chosen)))) if len(chosen) else None
        best = found or best
        return found is not None

    if not shows(likely):
        keep_least(list(items), [1] * len(items), shows)
    return best


def with_heads(call: OpCall, heads: Sequence[int], groups: Sequence[int]) -> OpCall:
    sinks = None if call.sinks is None else call.sinks[list(heads)].clone()
    beside = tuple(replace(row, query=row.query[:, list(heads)].clone()) for row in call.beside)
    return replace(
        call,
        beside=beside,
        query=call.query[:, list(heads)].clone(),
        keys=call.keys[:, :, list(groups)].clone(),
        values=call.values[:, :, list(groups)].clone(),
        sinks=sinks,
    )


def fewer_queries(case: Case, accept: Accept) -> Case:
    """The last query alone; else the first that shows the fault, with the call ending at it; else as few last ones as
    do. One query takes a decode kernel's path, two are the least prefill."""
    call, count = case.call, len(case.call.query)
    if count == 1:
        return case
    last = [replace(call, query=call.query[-few:].clone()) for few in (1, 2) if few < count]
    ends = [] if case.changed is None else np.flatnonzero(case.changed.any(1)).tolist()[:1]
    own = [cut_at(call, end) for end in ends if end < count - 1]
    for candidate in [*last[:1], *own, *last[1:]]:
        if found := accept(case.but(candidate)):
            return found
    best = case

    def shows(few: int) -> bool:
        nonlocal best
        found = accept(case.but(replace(call, query=call.query[-few:].clone())))
        best = found or best
        return found is not None

    least_number(1, count, lambda few: few == count or shows(few))
    return best


def cut_at(call: OpCall, query: int) -> OpCall:
    """The call as if it ended with this query, alone."""
    length = call.length - (len(call.query) - 1 - query)
    return replace(
        call,
        query=call.query[query : query + 1].clone(),
        table=call.table[: -(-length // call.block_size)].copy(),
        length=length,
    )


def shorter(case: Case, accept: Accept) -> Case:
    """The extremes first, then lengths of the same residue modulo the page and its powers of two (where tiles lie),
    then fewer pages and fewer tokens by halving."""
    for length in lengths_to_try(case.call):
        if found := accept(case.but(with_length(case.call, length))):
            case = found
            break
    return fewer_tokens(fewer_pages(case, accept), accept)


def lengths_to_try(call: OpCall) -> Iterator[int]:
    page, least = call.block_size, len(call.query)
    tiles = [page << power for power in range(max(call.length // page, 1).bit_length())]
    residues = [call.length % tile or tile for tile in tiles]
    for length in dict.fromkeys((1, page - 1, page, page + 1, *residues)):
        if least <= length < call.length:
            yield length


def fewer_pages(case: Case, accept: Accept) -> Case:
    """Whole pages less, the residue kept."""
    call = case.call
    lengths = range(call.length % call.block_size or call.block_size, call.length + 1, call.block_size)
    return least_length(case, accept, [length for length in lengths if length >= len(call.query)])


def fewer_tokens(case: Case, accept: Accept) -> Case:
    """Up to a page of tokens less, whatever the residue."""
    call = case.call
    least = max(len(call.query), call.length - call.block_size + 1)
    return least_length(case, accept, range(least, call.length + 1))


def least_length(case: Case, accept: Accept, lengths: Sequence[int]) -> Case:
    """By halving; the last of the lengths is the case's own."""
    best = case

    def shows(index: int) -> bool:
        nonlocal best
        found = accept(case.but(with_length(case.call, lengths[index])))
        best = found or best
        return found is not None

    least_number(0, len(lengths) - 1, shows)
    return best


def with_length(call: OpCall, length: int) -> OpCall:
    """The last pages of the call's, so that what lies behind its end in memory stays there where the residue does."""
    pages = -(-length // call.block_size)
    return replace(call, length=length, table=call.table[-pages:].copy())


def smaller_pool(case: Case, accept: Accept) -> Case:
    """Only the call's own blocks and the guilty one; what nobody needs holds zeros."""
    call = case.call
    own = [*tables_of(call), *([] if case.slot is None else [case.slot // call.block_size])]
    near = [block + shift for block in own for shift in (-1, 0, 1)]
    for blocks in (own, near):
        kept = np.intersect1d(call.blocks, np.array(blocks)).astype(np.int32)
        if len(kept) < len(call.blocks) and (found := accept(case.but(with_blocks(call, kept)))):
            return found
    best = case

    def shows(blocks: list[int]) -> bool:
        nonlocal best
        kept = np.array(sorted({*tables_of(call), *blocks}), np.int32)
        found = accept(case.but(with_blocks(call, kept)))
        best = found or best
        return found is not None

    spare = np.setdiff1d(call.blocks, tables_of(call)).tolist()
    if spare and case.slot is None:
        keep_least(spare, [1] * len(spare), shows)
    return best


def tables_of(call: OpCall) -> list[int]:
    """All blocks that a row of the call has."""
    return [block for table in (call.table, *(row.table for row in call.beside)) for block in table.tolist()]


def with_blocks(call: OpCall, blocks: Ints) -> OpCall:
    rows = torch.from_numpy(np.searchsorted(call.blocks, blocks).astype(np.int64))
    return replace(call, blocks=blocks, keys=call.keys[rows].clone(), values=call.values[rows].clone())


def renumbered(case: Case, accept: Accept) -> Case:
    """Blocks from 1 on without gaps; where that hides the fault, gaps of one block. Block 0 stays: engines give it a
    meaning of its own."""
    call = case.call
    steps = np.diff(call.blocks, prepend=0)
    steps[0] = min(int(call.blocks[0]), 1)
    for widest in (1, 2):
        numbers = np.cumsum(np.minimum(steps, widest)).astype(np.int32)
        if np.array_equal(numbers, call.blocks):
            return case
        slot = case.slot
        if slot is not None:
            row = int(np.searchsorted(call.blocks, slot // call.block_size))
            slot = int(numbers[row]) * call.block_size + slot % call.block_size
        if found := accept(case.but(with_numbers(call, numbers), slot)):
            return found
    return case


def with_numbers(call: OpCall, numbers: Ints) -> OpCall:
    """Block numbers in place of the call's own, in their order."""

    def told(table: Ints) -> Ints:
        return numbers[np.searchsorted(call.blocks, table)].astype(np.int32)

    beside = tuple(replace(row, table=told(row.table)) for row in call.beside)
    return replace(call, blocks=numbers, table=told(call.table), beside=beside)


def fewer_options(case: Case, accept: Accept) -> Case:
    """Entries of the executor's own lists, and what a kernel does beside plain attention."""
    for name, value in case.call.options.items():
        if isinstance(value, list):
            for entry in list(value):
                left = [other for other in case.call.options[name] if other is not entry]
                options = {**case.call.options, name: left}
                case = accept(case.but(replace(case.call, options=options))) or case
    if case.call.sinks is not None:
        case = accept(case.but(replace(case.call, sinks=None))) or case
    if case.call.softcap is not None:
        case = accept(case.but(replace(case.call, softcap=None))) or case
    if case.call.window is not None:
        case = accept(case.but(replace(case.call, window=None))) or case
    return case


def plainer_values(case: Case, accept: Accept) -> Case:
    """The plainest numbers that still show it."""
    for values in SYNTHETIC[: SYNTHETIC.index(case.values) if case.values in SYNTHETIC else None]:
        if found := accept(replace(case, values=values, changed=None).but(case.call)):
            return found
    return case
