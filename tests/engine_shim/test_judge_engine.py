"""The judge over the embedded engine: what a layer is given, memory that changed, what came once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from checkengine.benchmarks.corpus_persistence import judge_seeded, seeded_case
from checkengine.engine_shim.faults import build_faults
from checkengine.replay.judge.inputs import try_inputs
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.playback import Playback
from checkengine.replay.windows import build_window

sys.path.insert(0, str(Path(__file__).parent))
from test_executor import executor_over, serve


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_right_engines_layers_are_given_what_their_hidden_states_give_bit_for_bit() -> None:
    engine, capture = serve(at=14, first=4, names=("r1", "r2"))
    outcome = try_inputs(Bench(executor_over(engine), build_window(capture)))
    assert outcome is not None
    assert outcome.wrong is None
    assert outcome.layers >= 3 * 8


def test_inputs_leave_the_memory_as_the_step_left_it() -> None:
    engine, capture = serve(at=12, first=10)
    executor, window = executor_over(engine), build_window(capture, first=12)
    (step,) = window.steps
    row = int(np.flatnonzero(step.involved)[0])
    one, other = Playback(executor, window), Playback(executor, window)
    one.run(step)
    other.prepare(step)
    executor.inputs(step.replay, other.memory, row=row)
    for name, tensor in one.memory.kv.tensors.items():
        assert torch.equal(tensor, other.memory.kv.tensors[name])


@pytest.mark.parametrize(
    ("fault", "called"),
    [
        ({"name": "position_shift"}, "wrong rotary position"),
        ({"name": "softmax_scale"}, "wrong scale"),
        ({"name": "dropped_last_page", "block_size": 8}, "under-read"),
    ],
)
def test_a_planted_fault_that_reads_only_its_own_memory_is_convicted_and_named(fault, called: str) -> None:
    engine, capture = serve(build_faults([fault]), at=16, first=10, names=("r1", "r2"))
    verdict = Judge(executor_over(engine)).judge(build_window(capture, first=12))
    assert verdict.kind is VerdictKind.CODE_DEFECT, verdict.sentence
    assert verdict.fault_class == called, verdict.sentence


@pytest.mark.parametrize("seed", range(6))
def test_what_comes_again_what_stays_in_memory_and_what_came_once_are_told_apart(seed: int) -> None:
    wanted, told = judge_seeded(seeded_case(seed))
    assert told == wanted
