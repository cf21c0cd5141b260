"""Slots of a row's own that its window has left: neither its to see nor anybody else's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_calls import made_call, reading

from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.summation import ORDERS, parts, textbook
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.localise.calls import same
from checkengine.replay.minimise.judge_call import judge_call
from checkengine.replay.op_call import OpCall

WINDOWED = [{"window": 20}, {"window": 9, "tokens": 12}, {"window": 1}, {"window": 44, "length": 45}]
NAN_TEST = "NaN behind the window"


class Kernel:
    """An executor with one kernel."""

    reference = "reference"
    row_independent = True

    def __init__(self, attend: Callable[[OpCall], torch.Tensor]) -> None:
        self._attend = attend

    def attend(self, call: OpCall, *, kernel: str | None = None) -> torch.Tensor:
        return textbook(call) if kernel == self.reference else self._attend(call)

    def calls(self, *args: object, **options: object) -> list[tuple[OpCall, torch.Tensor]]:
        raise NotImplementedError


def only_what_is_seen(call: OpCall) -> torch.Tensor:
    """A kernel that never loads what no query may see."""
    query, keys, values = parts(call)
    first = call.first_seen
    return textbook_of(call, query, keys[:, first:], values[:, first:])


def textbook_of(call: OpCall, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    scores = query @ keys.transpose(1, 2) * call.scaling
    position = torch.arange(call.length - len(call.query), call.length).unsqueeze(1)
    key = torch.arange(call.length - keys.shape[1], call.length).unsqueeze(0)
    seen = (key <= position) & (key > position - int(call.window or call.length + 1))
    return (torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ values).transpose(0, 1)


def outcome(verdict: Verdict, name: str) -> bool | None:
    return next(test.passed for test in verdict.tests if test.name == name)


@pytest.mark.parametrize("shape", WINDOWED, ids=str)
def test_every_slot_is_seen_or_behind_or_not_the_rows_own(shape) -> None:
    call = made_call(1, **shape)
    size = call.block_size
    everything = (call.blocks[:, None] * size + np.arange(size)).ravel()
    assert sorted([*call.owned, *call.behind, *call.unowned]) == sorted(everything.tolist())
    assert set(call.hidden.tolist()) == set(everything.tolist()) - set(call.owned.tolist())


@pytest.mark.parametrize("shape", WINDOWED, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_a_healthy_windowed_kernel_that_multiplies_by_zero_is_not_convicted(shape, order: str) -> None:
    verdict = judge_call(Kernel(ORDERS[order]), made_call(2, **shape))
    assert verdict.kind is VerdictKind.NO_FAULT, verdict.sentence
    assert outcome(verdict, "fills")
    assert outcome(verdict, "NaN fill")
    assert outcome(verdict, NAN_TEST) is None


def test_nan_behind_the_window_is_graded_as_a_masked_read_and_passed_by_a_kernel_that_never_loads_it() -> None:
    call = made_call(3, window=20)
    graded = next(test for test in judge_call(Kernel(textbook), call).tests if test.name == NAN_TEST)
    assert str(FaultClass.MASKED_READ) in graded.detail
    clean = judge_call(Kernel(only_what_is_seen), call)
    assert (clean.kind, outcome(clean, NAN_TEST)) == (VerdictKind.NO_FAULT, True)
    assert same(only_what_is_seen(call), only_what_is_seen(call.filled(call.hidden, float("nan"))))


@pytest.mark.parametrize("tokens", [1, 12])
def test_a_finite_number_behind_the_window_that_changes_bits_is_a_wrong_edge(tokens: int) -> None:
    call = made_call(4, window=20, tokens=tokens)
    verdict = judge_call(Kernel(reading(lambda c: replace(c, window=21))), call)
    assert (verdict.kind, verdict.fault_class) == (VerdictKind.CODE_DEFECT, FaultClass.WINDOW_EDGE)
    assert [place.slot for place in verdict.slots] == [int(call.behind[-1])]


def test_nan_past_a_windowed_rows_end_is_still_a_masked_read_of_others_memory() -> None:
    call = made_call(5, window=20)
    tail = call.unowned[np.isin(call.unowned // call.block_size, call.table[-1:])]

    def tail_times_zero(c: OpCall) -> torch.Tensor:
        rows, offsets = np.searchsorted(c.blocks, tail // c.block_size), tail % c.block_size
        return textbook(c) + 0.0 * c.values[rows.tolist(), offsets.tolist()].sum()

    verdict = judge_call(Kernel(tail_times_zero), call)
    assert (verdict.kind, verdict.fault_class) == (VerdictKind.NAN_UNSAFE, FaultClass.MASKED_READ)
