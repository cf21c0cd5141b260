"""Turns of an output to scripts that neither its prompt nor its own start justifies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from checkengine.detectors.language.scripts import Script


@dataclass(frozen=True, slots=True)
class ScriptReading:
    """`salad`: tokens jump among scripts; `switch`: the output went over to one foreign script."""

    kind: Literal["salad", "switch"]
    start: int
    """Index of the output token at which the evidence began."""
    foreign_tokens: int
    scripts: int
    """Bit mask of the foreign scripts seen since `start`."""


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    salad_evidence: int = 6
    switch_tokens: int = 40


class ScriptSwitch:
    """State of one sequence. `expected` is a bit mask as of `expected_scripts`.

    A change to another foreign script weighs most, a further token of the same one little: quotations
    and names stay within one script, corrupted attention jumps. An expected letter takes evidence away.
    """

    __slots__ = ("_count", "_evidence", "_expected", "_foreign", "_last", "_limits", "_run", "_scripts", "_start")

    def __init__(self, expected: int, limits: ScriptLimits | None = None) -> None:
        self._expected = expected | (1 << Script.COMMON)
        self._limits = limits or ScriptLimits()
        self._count = 0
        self._evidence = 0
        self._foreign = 0
        self._run = 0
        self._scripts = 0
        self._last = 0
        self._start = 0

    def push(self, script: int) -> ScriptReading | None:
        """Takes the `Vocabulary.script` of the next output token."""
        self._count += 1
        if (self._expected >> script) & 1:
            if script and self._evidence:
                self._calm()
            self._last = script or self._last
            return None
        return self._weigh(script)

    def _calm(self) -> None:
        self._evidence -= 1
        self._run = 0
        if not self._evidence:
            self._foreign = self._scripts = 0

    def _weigh(self, script: int) -> ScriptReading | None:
        if not self._evidence:
            self._start = self._count - 1
        changed = script != self._last and script != Script.PARTIAL and not (self._scripts >> script) & 1
        self._evidence += 2 if changed else (1 if script == Script.PARTIAL else 0)
        self._evidence = max(self._evidence, 1)
        if script != Script.PARTIAL:
            self._scripts |= 1 << script
            self._last = script
        self._foreign += 1
        self._run += 1
        if self._evidence >= self._limits.salad_evidence and self._scripts.bit_count() >= 2:
            return ScriptReading("salad", self._start, self._foreign, self._scripts)
        if self._run >= self._limits.switch_tokens and self._scripts:
            return ScriptReading("switch", self._start, self._foreign, self._scripts)
        return None
