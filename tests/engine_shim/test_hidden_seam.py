"""Hidden states that an engine gives reach the magnitude guard; what does not fit is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from checkengine.engine_shim.adapter import StopOnly
from checkengine.engine_shim.shim import Shim, ShimParts
from checkengine.guards import EventBus, IncidentBook, Pipeline, Policy
from checkengine.guards.magnitude import MagnitudeGuard
from checkengine.guards.settings import BrakeSettings, GuardsSettings
from checkengine.guards.step import SequenceStart, StepView
from checkengine.replay.record import StepRecord

ROWS, SIZE = 32, 16


class Adapter(StopOnly):
    def apply(self, action: Any) -> None:
        """Nobody stops here."""

    def environment(self) -> dict[str, Any]:
        return {}


class Looking(MagnitudeGuard):
    """Keeps what it was shown."""

    def __init__(self, settings: GuardsSettings) -> None:
        super().__init__(settings.magnitude)
        self.shown: list[torch.Tensor | None] = []

    def observe(self, step: StepView) -> list[Any]:
        self.shown.append(step.hidden)
        return list(super().observe(step))


def run(batches: list[torch.Tensor]) -> tuple[Looking, list[str]]:
    settings, bus = GuardsSettings(), EventBus()
    guard = Looking(settings)
    shim = Shim(
        Adapter(), ShimParts(Pipeline([guard], settings), Policy(settings, BrakeSettings(), IncidentBook()), bus)
    )
    starts = tuple(SequenceStart(row, f"s{row}", (7,)) for row in range(ROWS))
    ones = np.ones(ROWS, np.int32)
    told: list[str] = []
    for number, hidden in enumerate(batches):
        record = StepRecord(
            number,
            0,
            np.arange(ROWS, dtype=np.int32),
            ones,
            np.zeros(ROWS, np.int32),
            ones.astype(np.bool_),
            ones,
            begun=starts if not number else (),
        )
        with shim.step(record) as step:
            step.logits(torch.zeros(ROWS, 4))
            step.hidden(hidden)
            step.tokens(ones)
            told += [finding.sequence for finding in step._findings]
        assert step._hidden is None
    bus.close()
    return guard, told


def test_a_flipped_element_of_a_hidden_state_is_told_through_the_shim() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(ROWS, SIZE, generator=generator) for _ in range(60)]
    batches[-1][5, 3] = 2.0**16
    assert run(batches)[1] == ["s5"]


def test_hidden_states_of_another_shape_or_device_are_left_out() -> None:
    odd = [torch.zeros(ROWS + 1, SIZE), torch.zeros(ROWS), torch.zeros(ROWS, SIZE, device="meta")]
    guard, told = run([*odd, torch.ones(ROWS, SIZE, requires_grad=True)])
    assert [hidden is None for hidden in guard.shown] == [True, True, True, False]
    assert told == []
