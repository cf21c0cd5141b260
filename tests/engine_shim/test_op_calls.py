"""Attention calls taken out of a step and run alone."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from checkengine.engine_shim.faults import NanAttention, OverRead
from checkengine.replay.op_call import takes_calls
from checkengine.replay.playback import Playback
from checkengine.replay.windows import build_window

sys.path.insert(0, str(Path(__file__).parent))
from test_executor import executor_over, serve


def calls_of(faults=(), at: int = 25, first: int = 22):
    """Every call of the involved rows in the last step of a served window, with the executor."""
    engine, capture = serve(faults, at=at, first=first, names=("r1", "r2"))
    executor = executor_over(engine)
    window = build_window(capture, first=first, last=at)
    playback = Playback(executor, window)
    *before, last = window.steps
    for step in before:
        playback.run(step)
    rows = np.flatnonzero(last.involved).tolist()
    return executor, executor.calls(last.replay, playback.memory, rows=rows)


@pytest.mark.parametrize("faults", [(), (OverRead(block_size=8),), (NanAttention(modulus=1, remainder=0, layer=1),)])
def test_a_call_run_alone_gives_the_bits_that_it_gave_in_its_step(faults) -> None:
    executor, calls = calls_of(faults)
    assert takes_calls(executor)
    assert len(calls) == 2 * 3
    for call, output in calls:
        assert torch.equal(executor.attend(call).nan_to_num(7.0), output.nan_to_num(7.0))


def test_a_right_kernel_reads_no_slot_that_a_call_does_not_own() -> None:
    executor, calls = calls_of()
    for call, output in calls:
        assert len(call.unowned)
        assert torch.equal(executor.attend(call.filled(call.unowned, 1e4)), output)


def test_an_over_read_shows_in_a_call_alone_and_not_under_the_reference_kernel() -> None:
    executor, calls = calls_of((OverRead(block_size=8),))
    for call, output in calls:
        filled = call.filled(call.unowned, 64.0)
        assert not torch.equal(executor.attend(filled), executor.attend(call.filled(call.unowned, -64.0)))
        reference = executor.attend(filled, kernel="reference")
        assert torch.equal(reference, executor.attend(call, kernel="reference"))
        assert not torch.equal(reference, output)


def test_float64_runs_a_call_in_float64() -> None:
    executor, calls = calls_of()
    call, output = calls[0]
    wide = executor.attend(call, kernel="float64")
    assert wide.dtype == torch.float64
    assert torch.allclose(wide.float(), output, atol=1e-5)
