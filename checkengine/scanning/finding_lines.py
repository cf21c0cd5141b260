"""A finding as one line of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from checkengine.guards.finding import Severity


@dataclass(frozen=True, slots=True)
class Found:
    """What is told of one finding; `guard` is the scan's name of it."""

    owner: str | int
    """Id of the completion or conversation, or name of the series."""
    kind: str
    severity: Severity
    guard: str
    at: Mapping[str, float | int]
    evidence: Mapping[str, float | int | bool | str]
    series: bool = False

    def line(self) -> str:
        """ASCII (a lone surrogate stays an escape), and JSON that every reader takes: no NaN, no Infinity."""
        return json.dumps(
            {
                "series" if self.series else "id": self.owner,
                "kind": self.kind,
                "severity": self.severity.name.lower(),
                "guard": self.guard,
                "at": _plain(self.at),
                "evidence": _plain(self.evidence),
            },
            allow_nan=False,
        )


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    return {name: _value(value) for name, value in values.items()}


def _value(value: object) -> object:
    """numpy's numbers as Python's; a number that JSON does not know as a text."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else str(value)
