"""The protocol of a guard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from checkengine.guards.finding import Finding
from checkengine.guards.step import SequenceStart, StepView


class Guard(Protocol):
    """State per sequence is bounded, is made in `begin` (or at first sight) and freed in `forget`.

    A guard reports a fault of a sequence once, not at each step.
    """

    name: str
    """As in the configuration: nonfinite, uniform, impossible_token, ignored_stop, repetition, tool_calls, language…"""
    version: int
    needs_stats: bool

    def begin(self, start: SequenceStart) -> None: ...

    def observe(self, step: StepView) -> Iterable[Finding]: ...

    def forget(self, sequence: str) -> None: ...
