"""Turns of an output to scripts that neither its prompt nor its own course justifies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from checkengine.detectors.language.scripts import Script


@dataclass(frozen=True, slots=True)
class ScriptReading:
    """`salad`: tokens jump among foreign scripts; `switch`: the output went over to a foreign script."""

    kind: Literal["salad", "switch"]
    start: int
    """Index of the output token at which the evidence began."""
    foreign_tokens: int
    """Tokens of foreign scripts since then."""
    scripts: int
    """Bit mask of these scripts."""


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    """`jump` is the evidence of one more foreign script, `entry` of entering one from expected text;
    an expected letter takes 1 away. A run of `established_run` tokens of one script is a quotation or
    a name: entering that script again is then no evidence of salad."""

    salad_evidence: int = 6
    switch_tokens: int = 48
    jump: int = 3
    entry: int = 1
    established_run: int = 6


class ScriptSwitch:
    """State of one sequence: a few integers. `expected` is a bit mask as of `expected_scripts`.

    Quotations, names and translated terms stay within one script and come back; corrupted attention
    jumps from script to script. Signs, digits and emoji (COMMON) and pieces of characters (PARTIAL)
    count neither way.
    """

    # fmt: off
    __slots__ = (
        "_count", "_established", "_evidence", "_expected", "_foreign", "_last", "_limits", "_run", "_scripts",
        "_start", "_switch", "_switch_start",
    )
    # fmt: on

    def __init__(self, expected: int, limits: ScriptLimits | None = None) -> None:
        self._expected = expected
        self._limits = limits or ScriptLimits()
        self._count = 0
        self._established = 0
        self._evidence = 0
        self._foreign = 0
        self._last = 0
        self._run = 0
        self._scripts = 0
        self._start = 0
        self._switch = 0
        self._switch_start = 0

    def push(self, script: int) -> ScriptReading | None:
        """Takes the `Vocabulary.script` of the next output token."""
        self._count += 1
        if script <= Script.PARTIAL:
            return None
        if (self._expected >> script) & 1:
            if self._switch or self._evidence:
                self._calm()
            self._last = 0
            return None
        return self._weigh(script)

    def _calm(self) -> None:
        if self._last and self._run >= self._limits.established_run:
            self._established |= 1 << self._last
        self._switch = max(0, self._switch - 2)
        self._evidence = max(0, self._evidence - 1)
        if not self._evidence:
            self._foreign = self._scripts = 0

    def _weigh(self, script: int) -> ScriptReading | None:
        limits = self._limits
        if script == Script.KANA:
            # Japanese writes both side by side: they are one writing system, and no jump.
            script = Script.HAN
        if not self._switch:
            self._switch_start = self._count - 1
        self._switch += 1
        self._run = self._run + 1 if script == self._last else 1
        if self._run == 1 and not (self._established >> script) & 1:
            if not self._evidence:
                self._start = self._count - 1
            another = self._scripts & ~(1 << script)
            self._evidence += limits.jump if another else limits.entry
        self._last = script
        self._scripts |= 1 << script
        self._foreign += 1
        if self._evidence >= limits.salad_evidence:
            return ScriptReading("salad", self._start, self._foreign, self._scripts)
        if self._switch >= limits.switch_tokens:
            return ScriptReading("switch", self._switch_start, self._switch, self._scripts)
        return None
