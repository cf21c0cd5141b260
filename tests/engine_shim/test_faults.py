"""Planted faults: each acts, each comes again from its description, and a call run alone gives the faulty bits."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import torch

from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.faults import FAULTS, HEALTHY, FaultClass, build_faults, describe_fault
from checkengine.engine_shim.faults.nondeterminism import SplitKRace, UninitialisedAccumulator
from checkengine.engine_shim.faults.rows import SharedScale, SwappedRows
from checkengine.replay.playback import Playback
from checkengine.replay.windows import build_window
from checkengine.selftest_cases import case_of
from checkengine.selftest_recording import record_run
from checkengine.tiny import tiny_model

CITATION = re.compile(r"[\w.-]+/[\w.-]+(#\d+| commit [0-9a-f]{7,})|postmortem")
UNSTEADY = (SplitKRace.name, UninitialisedAccumulator.name)
BY_COMPANY = (SwappedRows.name, SharedScale.name)
SEEN_BY_NAN_ONLY = ("masked_over_read",)
AT_ATTENTION = [
    name
    for name, fault in FAULTS.items()
    if fault.in_code
    and name not in (*UNSTEADY, *BY_COMPANY)
    and fault.fault_class not in (FaultClass.SAMPLER, FaultClass.STOP)
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def model_of(family: str):
    return tiny_model(family)


def some_steps(record):
    return (record.handles.tolist(), record.step) if record.step in (3, 9, 14, 20) else None


def nothing(record):
    return None


def bits(name: str, *, planted: bool) -> list[tuple[list[int], list[int]]]:
    """Fingerprints and tokens of every step that an engine ran."""
    case = case_of(name)
    engine, _ = record_run(model_of(case.family), case.requests, nothing, [case.fault] if planted else [])
    records = engine.shim.recorder.window(0).records
    return [(record.fingerprints.tolist(), record.sampled.tolist()) for record in records]


@cache
def clean_bits(family: str, greedy: bool = False) -> list[tuple[list[int], list[int]]]:
    example = {"llama": "over_read", "mistral": "window_too_wide", "gemma2": "no_softcap", "gpt_oss": "no_sinks"}
    return bits("approximate_top_k" if greedy else example[family], planted=False)


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in SEEN_BY_NAN_ONLY and name != "masked_stop"])
def test_a_planted_fault_changes_what_a_tiny_engine_computes(name: str) -> None:
    case = case_of(name)
    assert bits(name, planted=True) != clean_bits(case.family, name == "approximate_top_k")


def test_a_masked_over_read_changes_no_bit_while_memory_is_finite() -> None:
    assert bits("masked_over_read", planted=True) == clean_bits("llama")


@pytest.mark.parametrize("name", AT_ATTENTION)
def test_a_call_run_alone_gives_the_bits_that_a_fault_gave_it_in_its_step(name: str) -> None:
    case = case_of(name)
    engine, captures = record_run(model_of(case.family), case.requests, some_steps, [case.fault])
    executor = EmbeddedExecutor.over(engine.model, engine.environment())
    for capture in captures[:3]:
        window = build_window(capture, first=capture.window.last_step)
        playback = Playback(executor, window)
        step = window.steps[-1]
        playback.prepare(step)
        for call, output in executor.calls(step.replay, playback.memory, rows=np.flatnonzero(step.involved).tolist()):
            assert torch.equal(executor.attend(call).nan_to_num(7.0), output.nan_to_num(7.0))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_made_again_from_its_description(name: str) -> None:
    fault = case_of(name).fault
    (again,) = build_faults([describe_fault(fault)])
    assert type(again) is type(fault)
    assert describe_fault(again) == describe_fault(fault)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_names_the_public_bug_that_it_models(name: str) -> None:
    assert CITATION.search(FAULTS[name].models)
    assert FAULTS[name].fault_class in FaultClass


def test_every_class_of_faults_in_code_or_memory_has_one() -> None:
    of_machine = {FaultClass.PLACEMENT, FaultClass.TRANSIENT, FaultClass.WEIGHTS}
    assert {fault.fault_class for fault in FAULTS.values()} == set(FaultClass) - of_machine


def test_an_unknown_fault_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown fault 'gremlin'"):
        build_faults([{"name": "gremlin"}])


@pytest.mark.parametrize("name", HEALTHY)
def test_another_order_of_summation_rounds_otherwise_and_no_more_than_that(name: str) -> None:
    case = case_of("over_read")
    engine, captures = record_run(model_of("llama"), case.requests, some_steps)
    capture = captures[1]
    window = build_window(capture, first=capture.window.last_step)
    plain = EmbeddedExecutor.over(engine.model, engine.environment())
    other = EmbeddedExecutor.over(engine.model, {**engine.environment(), "faults": [{"name": name}]})
    calls = [
        executor.calls(window.steps[-1].replay, executor.memory(window.image), rows=[0, 1, 2], layers=[0])
        for executor in (plain, other)
    ]
    pairs = [(one, two) for (_, one), (_, two) in zip(*calls, strict=True)]
    assert all(torch.allclose(one, two, rtol=1e-4, atol=1e-5) for one, two in pairs)
    assert any(not torch.equal(one, two) for one, two in pairs)
