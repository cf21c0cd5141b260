"""Sampling parameters, generator states, and a replay's step as rows."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.engine_shim.vllm.environment import engine_arguments, files_digest, variables_of
from checkengine.engine_shim.vllm.generator import GeneratorRing, pack_states, unpack_states
from checkengine.engine_shim.vllm.sampling import parameters_from, sampling_of, stop_tokens_of
from checkengine.engine_shim.vllm.step_messages import compact, rows_of
from checkengine.guards.step import SequenceStart
from checkengine.replay.executor import CannotReplayError, ReplayStep
from checkengine.replay.record import StepRecord


@dataclass
class Parameters:
    """As vLLM's SamplingParams, as far as tests need it."""

    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    logit_bias: dict[int, float] | None = None
    _all_stop_token_ids: set[int] = field(default_factory=set)
    _eos_token_id: int | None = None


def test_sampling_parameters_come_back_as_a_worker_needs_them() -> None:
    given = Parameters(0.5, n=3, stop=["x"], logit_bias={7: -1.0}, _all_stop_token_ids={5, 2}, _eos_token_id=2)
    told = sampling_of(given)
    again = parameters_from(told, Parameters)
    assert again == Parameters(0.5, logit_bias={7: -1.0}, _all_stop_token_ids={5, 2}, _eos_token_id=2)
    assert stop_tokens_of(given) == (2, 5)


def test_a_parameter_that_the_installed_version_lacks_is_refused_as_cannot_judge() -> None:
    with pytest.raises(CannotReplayError, match="top_secret"):
        parameters_from({"temperature": 0.0, "top_secret": 1}, Parameters)


def test_notes_of_the_recorder_are_no_parameters() -> None:
    assert (
        parameters_from({"temperature": 0.5, "token_not_compared": "a grammar masks it"}, Parameters).temperature == 0.5
    )


def test_parameters_of_the_front_end_do_not_matter_to_a_worker() -> None:
    assert parameters_from({"temperature": 0.0, "detokenize": False}, Parameters) == Parameters(0.0)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_generator_states_come_back_bit_for_bit(draws: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    ring = GeneratorRing(100)
    states = {}
    for step, count in enumerate(draws):
        states[step] = generator.get_state().numpy()
        ring.note(step, generator.get_state())
        torch.rand(count, generator=generator)
    found = unpack_states(pack_states(ring.since(0)))
    assert found.keys() == states.keys()
    assert all(np.array_equal(found[step], states[step]) for step in states)


def test_states_of_consecutive_draws_take_little_room() -> None:
    generator = torch.Generator().manual_seed(1)
    states = {}
    for step in range(64):
        states[step] = generator.get_state().numpy()
        torch.randint(0, 2**31, (8,), generator=generator)
    packed = pack_states(states)
    whole = sum(len(state) for state in states.values())
    assert sum(map(len, packed["states"])) < whole / 10


@pytest.mark.parametrize(
    "packed",
    [
        {"steps": [1]},
        {"steps": [1], "states": ["?"]},
        {"steps": [1], "states": [base64.b64encode(b"no zlib").decode()]},
        {"steps": [1, 2], "states": [base64.b64encode(zlib.compress(b"1")).decode()]},
    ],
)
def test_generator_states_that_were_tampered_with_are_told_in_one_error(packed: dict[str, list[object]]) -> None:
    with pytest.raises(CannotReplayError):
        unpack_states(packed)


def test_a_state_that_inflates_without_end_is_cut() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
    assert len(unpack_states({"steps": [0], "states": [bomb]})[0]) <= 1 << 16


def step_of(samples: tuple[bool, bool, bool] = (True, False, True)) -> ReplayStep:
    record = StepRecord(
        step=3,
        time_ns=0,
        handles=np.array([4, 9, 5], np.int32),
        query_lengths=np.array([1, 2, 2], np.int32),
        starts=np.array([6, 2, 0], np.int32),
        samples=np.array(samples),
        token_ids=np.array([16, 22, 23, 30, 31], np.int32),
    )
    starts = {
        4: SequenceStart(4, "a", (10, 11, 12, 13), {"temperature": 0.8}),
        5: SequenceStart(5, "stand-in", (), {"temperature": 0.0}),
    }
    tables = [np.array([8, 2], np.int32), np.array([8], np.int32), np.array([5], np.int32)]
    return ReplayStep(record, tables, starts, {4: (14, 15, 16), 5: ()})


def test_a_row_has_the_tokens_from_which_its_sampler_counts() -> None:
    decode, chunk, fresh = rows_of(step_of(), compact(np.array([0, 2, 5, 8], np.int32)))
    assert (decode.prompt, decode.outputs, decode.computed) == ([10, 11, 12, 13], [14, 15, 16], 6)
    assert decode.blocks == [3, 1]
    assert (fresh.prompt, fresh.outputs) == ([30, 31], [])
    # A chunk that is not the last: one token more is known than computed, so nothing is sampled.
    assert (chunk.prompt, chunk.outputs, chunk.scheduled) == ([0, 0, 22, 23, 0], [], 2)


def test_a_block_that_the_capture_lacks_is_named() -> None:
    with pytest.raises(CannotReplayError, match=r"\[8\]"):
        rows_of(step_of(), compact(np.array([0, 2, 5], np.int32)))


def test_a_row_that_cannot_run_again_is_refused_with_its_reason() -> None:
    step = step_of()
    sampling = {"temperature": 0.0, "unreplayable": "it used a LoRA adapter"}
    told = ReplayStep(step.record, step.block_tables, {**step.starts, 4: SequenceStart(4, "a", (10,), sampling)}, {})
    with pytest.raises(CannotReplayError, match="LoRA"):
        rows_of(told, compact(np.array([0, 2, 5, 8], np.int32)))


def test_a_record_without_settings_or_of_several_ranks_cannot_be_rebuilt() -> None:
    with pytest.raises(CannotReplayError, match="settings"):
        engine_arguments({}, "model")
    with pytest.raises(CannotReplayError, match="rank"):
        engine_arguments({"settings": {"dtype": "float32"}, "parallel": {"tensor": 2}}, "model")


def test_the_digest_of_weight_files_tells_a_changed_byte(tmp_path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = files_digest(str(tmp_path))
    assert before == files_digest(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"weightz")
    assert files_digest(str(tmp_path)) != before
    assert files_digest("org/name") is None


SETTINGS = {"dtype": "float32", "max_model_len": 100, "block_size": 32, "enforce_eager": True}


def test_a_record_makes_the_worker_that_it_came_from() -> None:
    made = engine_arguments({"settings": SETTINGS}, "folder")
    assert made == {**SETTINGS, "model": "folder", "num_gpu_blocks_override": 5, "disable_log_stats": True}


@pytest.mark.parametrize(
    "strange", [{"dtype": "a b"}, {"max_model_len": 1 << 40}, {"block_size": [1]}, {"load_format": "runai_streamer"}]
)
def test_a_strangers_record_sets_nothing_that_is_no_setting(strange: dict[str, object]) -> None:
    with pytest.raises(CannotReplayError):
        engine_arguments({"settings": {**SETTINGS, **strange}}, "folder")
    assert "hf_overrides" not in engine_arguments({"settings": {**SETTINGS, "hf_overrides": "x"}}, "folder")


def test_a_strangers_record_sets_no_variable_but_those_that_decide_numbers() -> None:
    told = {"VLLM_CPU_ATTN_SPLIT_KV": "0", "LD_PRELOAD": "/tmp/x.so", "VLLM_BATCH_INVARIANT": "$(sh)"}
    assert variables_of({"variables": told}) == {"VLLM_CPU_ATTN_SPLIT_KV": "0"}
    assert variables_of({"variables": [1]}) == {}
