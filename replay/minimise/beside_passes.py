"""Rows that must run beside the guilty one for the fault to show: fewer of them, and smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from checkengine.replay.minimise.call_oracle import Accept, Case
from checkengine.replay.minimise.reduce import keep_least
from checkengine.replay.op_call import Beside, OpCall


def fewer_beside(case: Case, accept: Accept) -> Case:
    """As few rows as still let it show, by weight in tokens."""
    rows, best = case.call.beside, case

    def shows(chosen: list[int]) -> bool:
        nonlocal best
        found = accept(case.but(with_beside(case.call, chosen)))
        best = found or best
        return found is not None

    if rows:
        keep_least(list(range(len(rows))), [row.length for row in rows], shows)
    return best


def with_beside(call: OpCall, chosen: list[int]) -> OpCall:
    before = sum(index < call.place for index in chosen)
    return replace(call, beside=tuple(call.beside[index] for index in chosen), place=before)


def smaller_beside(case: Case, accept: Accept) -> Case:
    """Each row as short as still lets it show: one query, and the first length that does."""
    for index in range(len(case.call.beside)):
        for smaller in smaller_rows(case.call.beside[index], case.call.block_size):
            rows = list(case.call.beside)
            rows[index] = smaller
            if found := accept(case.but(replace(case.call, beside=tuple(rows)))):
                case = found
                break
    return case


def smaller_rows(row: Beside, page: int) -> Iterator[Beside]:
    """Plainest first: one query at one of the extreme lengths, at the row's own residue, at its own length."""
    for queries in dict.fromkeys((1, min(2, len(row.query)), len(row.query))):
        for length in dict.fromkeys((1, page - 1, page, page + 1, row.length % page or page, row.length)):
            if queries <= length <= row.length and (queries, length) != (len(row.query), row.length):
                pages = -(-length // page)
                yield Beside(row.query[-queries:].clone(), row.table[-pages:].copy(), length)
