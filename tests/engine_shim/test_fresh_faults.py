"""Every fault of the second set strikes a tiny engine, leaves it alone where it should, and is made again."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch

from checkengine.engine_shim.faults import FAULTS, build_faults, describe_fault
from checkengine.engine_shim.faults.blind import BLIND_FAULTS, requests_of, settings_of
from checkengine.engine_shim.faults.fault import Fault
from checkengine.engine_shim.faults.fresh import FRESH_FAULTS, FRESH_STRIKES
from checkengine.selftest_recording import record_run
from checkengine.tiny import tiny_model

SEEN_BY_NAN_ONLY = "prefill_tail_nan"
CITATION = re.compile(r"[\w.-]+#\d+|PR ?#\d+")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def model():
    return tiny_model()


def bits(name: str, fault: Fault | None) -> list[tuple[list[int], list[int]]]:
    strike = FRESH_STRIKES[name]
    faults = [] if fault is None else [fault]
    settings = settings_of(strike)
    engine, _ = record_run(model(), requests_of(strike.workload), lambda record: None, faults, settings)
    records = engine.shim.recorder.window(0).records
    return [(record.fingerprints.tolist(), record.sampled.tolist()) for record in records]


@cache
def clean(workload: str, name: str) -> list[tuple[list[int], list[int]]]:
    return bits(name, None)


def clean_of(name: str) -> list[tuple[list[int], list[int]]]:
    workload = FRESH_STRIKES[name].workload
    first = next(other for other in FRESH_STRIKES if FRESH_STRIKES[other].workload == workload)
    return clean(workload, first)


@pytest.mark.parametrize("name", [name for name in FRESH_FAULTS if name != SEEN_BY_NAN_ONLY])
def test_a_fresh_fault_changes_what_a_tiny_engine_computes(name: str) -> None:
    assert bits(name, FRESH_FAULTS[name](**FRESH_STRIKES[name].parameters)) != clean_of(name)


def test_the_one_that_multiplies_by_zero_changes_nothing_while_memory_is_finite() -> None:
    strike = FRESH_STRIKES[SEEN_BY_NAN_ONLY]
    assert strike.dirty_memory
    assert bits(SEEN_BY_NAN_ONLY, FRESH_FAULTS[SEEN_BY_NAN_ONLY](**strike.parameters)) == clean_of(SEEN_BY_NAN_ONLY)


@pytest.mark.parametrize("name", FRESH_FAULTS)
def test_a_fresh_fault_whose_condition_never_holds_changes_no_bit(name: str) -> None:
    assert bits(name, FRESH_FAULTS[name](**FRESH_STRIKES[name].quiet)) == clean_of(name)


@pytest.mark.parametrize("name", FRESH_FAULTS)
def test_a_fresh_fault_is_made_again_from_its_description_and_names_its_bug(name: str) -> None:
    fault = FRESH_FAULTS[name](**FRESH_STRIKES[name].parameters)
    (again,) = build_faults([describe_fault(fault)])
    assert again == fault
    assert CITATION.search(fault.models)


def test_no_fresh_fault_has_the_name_of_another() -> None:
    assert not FRESH_FAULTS.keys() & (FAULTS.keys() | BLIND_FAULTS.keys())
    assert FRESH_FAULTS.keys() == FRESH_STRIKES.keys()
