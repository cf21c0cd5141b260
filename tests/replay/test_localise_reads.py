"""Which slots a kernel reads, told from its outputs, and what that is called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_calls import free_block, made_call, one_past, reading, with_table

from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.summation import ORDERS, textbook
from checkengine.replay.localise.classify import class_of_reads
from checkengine.replay.localise.reads import find_reads
from checkengine.replay.op_call import OpCall

SHAPES = (
    {},
    {"length": 1},
    {"length": 300},
    {"length": 300, "tokens": 40},
    {"length": 64, "tokens": 64},
    {"window": 20},
    {"window": 9, "tokens": 30},
    {"sinks": True, "softcap": 3.0},
)


def class_of(call: OpCall, attend, owners=None) -> FaultClass:
    reads = find_reads(attend, call)
    assert reads is not None
    assert not reads.right
    return class_of_reads(call, reads, owners or {}, "own")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_right_kernel_reads_what_it_may_in_every_shape_and_dtype(shape, dtype: torch.dtype) -> None:
    call = made_call(1, dtype=dtype, **shape)
    for attend in ORDERS.values():
        reads = find_reads(attend, call)
        assert reads is not None
        assert reads.right


@pytest.mark.parametrize("length", [7, 8, 17, 64, 129, 1000])
def test_one_slot_too_many_is_an_over_read_and_named_to_the_slot(length: int) -> None:
    call = made_call(2, length=length)
    if length % 8 == 0:
        call = replace(call, table=np.arange(5, 5 + length // 8).astype(np.int32))
    reads = find_reads(reading(one_past), call)
    assert reads is not None
    wrong = one_past(call)
    last = int(wrong.table[length // 8]) * 8 + length % 8
    assert (reads.extra.tolist(), reads.missing.tolist(), reads.repeated.tolist()) == ([last], [], [])
    assert class_of(call, reading(one_past)) is FaultClass.OVER_READ


def test_few_calls_tell_one_slot_of_twenty_thousand() -> None:
    call = made_call(3, length=20_001, width=64, block=32)
    reads = find_reads(reading(one_past), call)
    assert reads is not None
    assert len(reads.extra) == 1
    assert reads.runs <= int(np.ceil(np.log2(20_001))) + 4


def test_a_slot_that_is_left_out_is_an_under_read_with_its_slot() -> None:
    call = made_call(4, length=41)
    reads = find_reads(reading(lambda c: replace(c, table=c.table[1:], length=c.length - 8)), call)
    assert reads is not None
    assert reads.missing.tolist() == list(range(int(call.table[0]) * 8, int(call.table[0]) * 8 + 8))
    shorter = reading(lambda c: replace(c, table=c.table[1:], length=c.length - 8))
    assert class_of(call, shorter) is FaultClass.UNDER_READ


def test_a_neighbouring_slot_in_the_place_of_one_is_seen_though_every_group_counts_right() -> None:
    call = made_call(5, length=3000, width=16)

    def swapped(c: OpCall) -> torch.Tensor:
        keys, values = c.keys.clone(), c.values.clone()
        row = int(np.searchsorted(c.blocks, c.table[100]))
        keys[row, 3], values[row, 3] = c.keys[row, 4], c.values[row, 4]
        return textbook(replace(c, keys=keys, values=values))

    reads = find_reads(swapped, call)
    assert reads is not None
    slot = int(call.table[100]) * 8
    assert (reads.missing.tolist(), reads.repeated.tolist()) == ([slot + 3], [slot + 4])


def test_a_page_in_the_wrong_place_is_called_by_whose_it_is() -> None:
    call = made_call(6, length=41)
    free = free_block(call)
    elsewhere = reading(lambda c: with_table(c, 2, free))
    assert class_of(call, elsewhere) is FaultClass.WRONG_PAGE
    assert class_of(call, elsewhere, {free: ("own",)}) is FaultClass.WRONG_PAGE
    assert class_of(call, elsewhere, {free: ("other",)}) is FaultClass.FOREIGN_PAGE
    twice = reading(lambda c: with_table(c, 2, int(c.table[0])))
    assert class_of(call, twice) is FaultClass.WRONG_PAGE


@pytest.mark.parametrize("shift", [-3, -1, 1, 4])
@pytest.mark.parametrize("tokens", [1, 6])
def test_a_window_that_begins_elsewhere_is_a_wrong_edge(shift: int, tokens: int) -> None:
    call = made_call(7, length=60, window=20, tokens=tokens)
    assert class_of(call, reading(lambda c: replace(c, window=20 + shift))) is FaultClass.WINDOW_EDGE


def test_a_token_that_sees_what_comes_after_it_is_named() -> None:
    call = made_call(8, length=30, tokens=6)

    def ahead(c: OpCall) -> torch.Tensor:
        output = textbook(c)
        output[2] = textbook(replace(c, query=c.query[2:3], length=c.length))[0]
        return output

    reads = find_reads(ahead, call)
    assert reads is not None
    assert reads.token == 2
    assert class_of(call, ahead) is FaultClass.WINDOW_EDGE


def test_a_fault_of_one_head_names_the_head() -> None:
    call = made_call(9, length=30)

    def one_head(c: OpCall) -> torch.Tensor:
        output = textbook(c)
        output[:, 3] = textbook(one_past(c))[:, 3]
        return output

    reads = find_reads(one_head, call)
    assert reads is not None
    assert reads.heads == (3,)


def test_reads_that_cannot_be_told_are_not_guessed() -> None:
    call = made_call(10)
    assert find_reads(lambda c: torch.full_like(textbook(c), torch.nan), call) is None
    assert find_reads(lambda c: torch.zeros_like(textbook(c)), call) is None
