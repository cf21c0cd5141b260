"""What of an engine's logits reaches the sampler guard, and that it is never what the engine did not sample from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from checkengine.engine_shim.adapter import StopOnly
from checkengine.engine_shim.shim import Shim, ShimParts
from checkengine.guards import EventBus, IncidentBook, Pipeline, Policy
from checkengine.guards.finding import Finding
from checkengine.guards.sampler import SamplerGuard
from checkengine.guards.settings import BrakeSettings, GuardsSettings
from checkengine.guards.step import SequenceStart
from checkengine.replay.record import StepRecord

LOGITS = torch.tensor([[1.0, 5.0, 4.0, -2.0], [3.0, 0.0, 1.0, 2.0]])
Between = Callable[[Any, torch.Tensor], None]


class Adapter(StopOnly):
    def __init__(self, redrawn: int | None) -> None:
        if redrawn is not None:
            self.redraw = lambda sequence, logits: redrawn

    def apply(self, action: Any) -> None:
        """Nobody stops here."""

    def environment(self) -> dict[str, Any]:
        return {}


def look(
    tokens: list[int], temperature: float = 0.0, between: Between | None = None, redrawn: int | None = None
) -> list[Finding]:
    settings, bus = GuardsSettings(), EventBus()
    pipeline = Pipeline([SamplerGuard(settings.sampler)], settings)
    shim = Shim(Adapter(redrawn), ShimParts(pipeline, Policy(settings, BrakeSettings(), IncidentBook()), bus))
    starts = tuple(SequenceStart(row, f"s{row}", (7,), {"temperature": temperature}) for row in range(2))
    ones = np.ones(2, np.int32)
    record = StepRecord(
        0, 0, np.arange(2, dtype=np.int32), ones, np.zeros(2, np.int32), ones.astype(np.bool_), ones, begun=starts
    )
    seen: list[Finding] = []

    class Listener:
        def step_done(self, record: StepRecord, findings: list[Finding], actions: Any) -> None:
            seen.extend(findings)

    shim.parts.listeners.append(Listener())
    logits = LOGITS.clone()
    with shim.step(record) as step:
        step.logits(logits)
        if between is not None:
            between(step, logits)
        step.tokens(np.array(tokens, np.int32))
        assert step._findings == seen
    assert step._scores is None
    bus.close()
    return seen


def test_a_greedy_token_that_is_not_the_best_is_told() -> None:
    assert look([1, 0]) == []
    assert [finding.sequence for finding in look([2, 0])] == ["s0"]


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits.div_(0.5),
        lambda logits: logits[:, 1].sub_(9.0),
        lambda logits: logits.index_fill_(1, torch.tensor([1]), -torch.inf),
    ],
)
def test_logits_that_the_engine_changed_in_place_are_not_judged_as_raw(change: Callable[[torch.Tensor], Any]) -> None:
    """Screened rows have no argmax to fall back on; full ones do, and that is the raw logits' own."""
    found = look([2, 0], temperature=1.0, between=lambda step, logits: change(logits))
    assert found == []


def test_the_samplers_own_scores_take_the_place_of_raw_logits() -> None:
    def give(step: Any, logits: torch.Tensor) -> None:
        step.sampled_from(torch.tensor([[1.0, 0.0, 4.0, -2.0], [3.0, 0.0, 1.0, 9.0]]))

    assert look([2, 3], between=give) == []
    assert len(look([1, 3], between=give)) == 1


def test_scores_of_another_number_of_rows_are_left_out() -> None:
    assert look([1, 0], between=lambda step, logits: step.sampled_from(torch.zeros(5, 4))) == []


def test_a_token_that_is_not_drawn_again_is_told() -> None:
    """One row a step is drawn again, in turn: here the second."""
    assert look([1, 0], temperature=1.0, redrawn=0) == []
    (finding,) = look([1, 2], temperature=1.0, redrawn=0)
    assert (finding.sequence, dict(finding.evidence)) == ("s1", {"redrawn": True})
