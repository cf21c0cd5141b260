"""The judge over the embedded engine: what a layer is given, memory that changed, what came once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from checkengine.benchmarks.corpus_persistence import judge_seeded, seeded_case
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import OverRead, build_faults
from checkengine.engine_shim.faults.blind import BLIND_FAULTS, STRIKES, requests_of, settings_of
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.investigate import investigate
from checkengine.replay.judge.gate import GateOutcome
from checkengine.replay.judge.inputs import try_inputs
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.playback import Playback
from checkengine.replay.windows import build_window
from checkengine.selftest_recording import record_run
from checkengine.tiny import tiny_model

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


def test_a_step_that_does_not_repeat_is_placed_to_its_token_and_heads_by_hashes_of_halves() -> None:
    engine, capture = serve(
        build_faults([{"name": "split_k_race", "layers": [1]}]), at=16, first=14, names=("r1", "r2")
    )
    verdict = Judge(executor_over(engine)).judge(build_window(capture, first=14))
    assert verdict.kind is VerdictKind.NONDETERMINISM
    assert (verdict.layers, verdict.op) == ((1,), "attention")
    assert verdict.heads
    record = next(record for record in capture.window.records if record.step == verdict.step)
    assert verdict.position in (record.starts + record.query_lengths - 1).tolist()


def test_the_judge_names_an_over_read_under_multi_head_latent_attention() -> None:
    requests = [
        GenerationRequest(f"r{number}", list(range(5, 16 + number)), SamplingParameters(seed=number, max_tokens=8))
        for number in range(2)
    ]

    def wanted(record):
        return (record.handles.tolist(), record.step) if record.step == 4 else None

    faults = [OverRead(block_size=8, layers=(1,))]
    engine, (capture,) = record_run(latent_model(), requests, wanted, faults)
    verdict = Judge(executor_over(engine)).judge(build_window(capture, first=4))
    assert (verdict.kind, verdict.fault_class) == (VerdictKind.CODE_DEFECT, "over-read"), verdict.sentence
    assert verdict.layers == (1,)
    assert capture.memory.tensors["kv0.key"].shape[-1] != capture.memory.tensors["kv0.value"].shape[-1]


class NotedGate:
    """In place of fresh processes: notes which window and step it is asked to repeat."""

    def check(self, window, step, fill, expected):
        assert any(each is step for each in window.steps)
        self.involved, self.bits = step.involved, expected
        return GateOutcome(step, False, runs=1, processes=1)


def test_a_step_convicted_among_all_rows_as_they_were_is_repeated_among_them() -> None:
    strike = STRIKES["forked_prefix"]

    def wanted(record):
        return (record.handles.tolist(), record.step) if record.step == 1 else None

    faults, requests = [BLIND_FAULTS["forked_prefix"](**strike.parameters)], requests_of(strike.workload)
    engine, (capture,) = record_run(tiny_model(), requests, wanted, faults, settings_of(strike))
    handle = next(handle for handle, start in capture.window.starts.items() if start.name == "r2")
    finding = Finding("test.planted", "r2", Severity.WARNING, 1, 0, "test")
    one, gate = replace(capture, involved=frozenset({handle}), findings=(finding,)), NotedGate()
    verdict = investigate(one, executor_over(engine), None, gate=gate).verdict
    assert (verdict.kind, verdict.fault_class) == (VerdictKind.CODE_DEFECT, "another sequence's page")
    assert [test.passed for test in verdict.tests if test.name in ("all rows", "gate")] == [False, True]
    assert gate.involved.sum() == 1
    assert gate.bits


def latent_model():
    """DeepSeek V3's attention, its feed-forward layers dense: rows stay independent."""
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        vocab_size=160,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        first_k_dense_replace=2,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=12,
        initializer_range=0.4,
        eos_token_id=None,
        bos_token_id=None,
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()
