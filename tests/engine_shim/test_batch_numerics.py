"""The same sequence in another batch takes another token: rounding's doing, and no defect."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import build_faults
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.capture import Capture
from checkengine.replay.investigate import investigate
from checkengine.replay.judge.repeat import run_first
from checkengine.replay.judge.shape import try_shape
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.windows import build_window
from checkengine.selftest_recording import record_run
from checkengine.tiny import tiny_model

ROWS, FIRST, LAST = 20, 8, 16
ALIKE = 40
"""Tokens whose rows of the head are one and the same but for their last bits: rounding chooses among them."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def undecided_model() -> Any:
    """Every fourth token is the twin of 39 others."""
    model = tiny_model()
    head = model.get_output_embeddings().weight.data
    noise = torch.randn(head.shape, generator=torch.Generator().manual_seed(1))
    head[:] = head[: len(head) // ALIKE].repeat(ALIKE, 1) * (1 + 1e-7 * noise)
    return model


@cache
def served(fault: str = "") -> tuple[Any, list[Capture]]:
    """Twenty greedy rows; a capture of the first sequence's window at each step from FIRST on."""
    requests = [
        GenerationRequest(
            f"r{number}",
            [(11 * number + 7 * position) % 150 for position in range(5 + number % 7)],
            SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True),
        )
        for number in range(ROWS)
    ]

    def wanted(record: Any) -> tuple[list[int], int] | None:
        return ([int(record.handles[0])], record.step) if FIRST <= record.step <= LAST else None

    faults = build_faults([{"name": fault}]) if fault else []
    settings = {"blocks": 120, "tokens_per_step": 400, "maximum_sequences": ROWS}
    return record_run(undecided_model(), requests, wanted, faults, settings)


def investigated(engine: Any, capture: Capture) -> Verdict:
    handle = next(iter(capture.involved))
    name = capture.window.starts[handle].name
    finding = Finding("language.switch", name, Severity.WARNING, capture.window.last_step, 0, "test")
    executor = EmbeddedExecutor.over(engine.model, engine.environment())
    verdict = investigate(replace(capture, findings=(finding,)), executor, None).verdict
    assert verdict is not None
    return verdict


def takes_another_token_alone(engine: Any, capture: Capture) -> bool:
    bench = Bench(EmbeddedExecutor.over(engine.model, engine.environment()), build_window(capture))
    shape = try_shape(bench, run_first(bench, None).outputs)
    return shape is not None and shape.step is not None


def test_a_token_that_the_batchs_shape_decides_is_batch_numerics_and_never_a_defect() -> None:
    engine, captures = served()
    decided = [takes_another_token_alone(engine, capture) for capture in captures]
    if not any(decided):
        pytest.skip("products of one row and of twenty round alike on this machine: no shape decides a token")
    verdicts = [investigated(engine, capture) for capture in captures]
    wanted = [VerdictKind.BATCH_NUMERICS if other else VerdictKind.INCONCLUSIVE for other in decided]
    assert [verdict.kind for verdict in verdicts] == wanted
    told = next(verdict for verdict in verdicts if verdict.kind is VerdictKind.BATCH_NUMERICS)
    assert told.persistence is None
    assert {test.name: test.passed for test in told.tests} | {"bound": True, "repeat": True, "record": True} == {
        test.name: test.passed for test in told.tests
    }
    assert "alone the sequence takes another" in told.sentence


def test_a_fault_in_a_batch_whose_shape_decides_tokens_is_still_a_defect() -> None:
    engine, captures = served("softmax_scale")
    assert investigated(engine, captures[-1]).kind is VerdictKind.CODE_DEFECT
