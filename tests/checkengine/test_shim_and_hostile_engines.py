"""An engine that hands over nonsense is not hurt by the shim, and hurts no other sequence's guards."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkengine.assemble import EngineShim
from checkengine.config import Settings
from checkengine.engine_shim.adapter import Capabilities, StopOnly
from checkengine.engine_shim.shim import as_token_ids
from checkengine.guards.action import Action
from checkengine.guards.step import SequenceStart
from checkengine.replay.record import StepRecord
from checkengine.selftest_faults import tiny_tokenizer

WORDS = 160
FIRST = SequenceStart(0, "a", (1, 2, 3))


class Engine(StopOnly):
    def apply(self, action: Action) -> None: ...


class Broken(Engine):
    capabilities = Capabilities(stop=True, retry=True, quarantine=True, snapshot=True)

    def tokens(self, sequence: str) -> Any:
        return "no tokens"

    def snapshot(self, blocks: Any) -> Any:
        return 5


def settings(directory: Path) -> Settings:
    capture = {"directory": str(directory / "bundles"), "content": "full"}
    return Settings(logits={"level": "full"}, capture=capture, spool={"directory": str(directory / "spool")})  # type: ignore[arg-type]


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[EngineShim]:
    shim = EngineShim(Engine(), tokenizer=tiny_tokenizer(), config=settings(tmp_path))
    yield shim
    shim.close()


def record(step: int = 0, rows: int = 1, **changes: Any) -> StepRecord:
    values = {
        "handles": np.arange(rows, dtype=np.int32),
        "query_lengths": np.ones(rows, np.int32),
        "starts": np.full(rows, 3 + step, np.int32),
        "samples": np.ones(rows, bool),
        "token_ids": np.full(rows, 5, np.int32),
        "begun": (FIRST,) if step == 0 else (),
    }
    return StepRecord(step=step, time_ns=step, **{**values, **changes})


def run(shim: EngineShim, record: Any, logits: Any, tokens: Any) -> list[Action]:
    with shim.step(record) as step:
        step.logits(logits)
        return step.tokens(tokens)


def nothing_finite(rows: int = 1) -> torch.Tensor:
    return torch.full((rows, WORDS), float("nan"))


GOOD = torch.zeros(1, WORDS).index_fill(1, torch.tensor([7]), 9.0)
TOKEN = np.array([7], np.int32)
NONSENSE: dict[str, tuple[Any, Any, Any]] = {
    "no logits": (record(), None, TOKEN),
    "logits that are a number": (record(), 3.5, TOKEN),
    "logits of another shape": (record(), torch.zeros(1, 1, WORDS), TOKEN),
    "logits of too many rows": (record(), torch.zeros(3, WORDS), TOKEN),
    "logits without columns": (record(), torch.zeros(1, 0), TOKEN),
    "logits without data": (record(), torch.zeros(1, WORDS, device="meta"), TOKEN),
    "no tokens": (record(), GOOD, None),
    "tokens that are fractions": (record(), GOOD, np.array([7.5])),
    "too many tokens": (record(), GOOD, np.arange(5, dtype=np.int32)),
    "no record": (None, GOOD, TOKEN),
    "no columns": (StepRecord(0, 0, *[None] * 5), GOOD, TOKEN),  # type: ignore[arg-type]
    "a start that is none": (record(begun=(None,)), GOOD, TOKEN),
    "a start without a prompt": (record(begun=(SequenceStart(0, "a", None),)), GOOD, TOKEN),  # type: ignore[arg-type]
    "an end that is a list": (record(ended=([],)), GOOD, TOKEN),
    "a handle twice": (
        record(rows=2, handles=np.zeros(2, np.int32)),
        torch.zeros(2, WORDS),
        np.array([7, 8], np.int32),
    ),
    "columns of several lengths": (record(rows=2, starts=np.ones(1, np.int32)), torch.zeros(2, WORDS), TOKEN),
    "negative lengths": (record(query_lengths=np.array([-9], np.int32)), GOOD, TOKEN),
    "a step beyond all integers": (replace(record(), step=2**70), GOOD, TOKEN),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_from_an_engine_never_raises_into_it_and_is_over_with_the_step(what: str, shim: EngineShim) -> None:
    run(shim, *NONSENSE[what])
    other = SequenceStart(9, "b", (1, 2))
    actions = run(shim, record(1, handles=np.array([9], np.int32), begun=(other,)), nothing_finite(), TOKEN)
    assert [action.sequence for action in actions] == ["b"]
    assert shim.failed_parts() == []


def test_one_wild_token_stops_its_own_sequence_and_switches_no_guard_off(shim: EngineShim) -> None:
    actions = run(shim, record(), GOOD, np.array([2**40]))
    assert [(action.sequence, action.finding) for action in actions] == [("a", "token.impossible")]
    assert all(state.active for state in shim.assembly.pipeline.states().values())


def test_token_ids_keep_their_meaning_in_whatever_integers_they_come() -> None:
    assert as_token_ids([7, 8]).tolist() == [7, 8]
    assert as_token_ids(torch.tensor([7])).dtype == np.int32
    assert as_token_ids(np.array([2**40, -(2**40)])).tolist() == [2**31 - 1, -(2**31)]
    assert as_token_ids([]).tolist() == []
    with pytest.raises(TypeError, match="float64"):
        as_token_ids([7.5])


def test_names_of_any_letters_are_guarded_and_the_step_goes_on(shim: EngineShim) -> None:
    names = ["\ud800", "ü\n\x1b[31m", "", "x" * 100_000, "../../\x00"]
    begun = tuple(SequenceStart(handle, name, (1, 2)) for handle, name in enumerate(names))
    actions = run(shim, record(rows=5, begun=begun), nothing_finite(5), np.full(5, 7, np.int32))
    assert {action.sequence for action in actions} == set(names)


def test_an_incident_whose_step_could_not_be_recorded_is_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shim = EngineShim(Broken(), tokenizer=tiny_tokenizer(), config=settings(tmp_path))
    with caplog.at_level(logging.WARNING):
        run(shim, record(), nothing_finite(), TOKEN)
    shim.close()
    told = [line for line in caplog.records if "no capture of incident" in line.message]
    assert len(told) == 1
    assert not any(line.exc_info for line in caplog.records)
