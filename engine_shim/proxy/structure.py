"""What an answer's end says of it: is it whole, and does the reason fit what was counted?

Warnings at most: servers count in different ways, and some leave a reason out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checkengine.guards.finding import Severity
from checkengine.guards.text import TextFinding

NAME = "answer"
EMPTY = "answer.empty"
CUT = "answer.cut"
MISMATCH = "finish.inconsistent"
SHORT_OF_LIMIT = 0.5
"""Share of the limit below which `length` does not fit: the context may be full before."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of a choice when it is over."""

    id: str
    finish: str | None
    """None: no reason came before the end."""
    characters: int
    """Said or thought."""
    blank: bool
    """All of them are white space."""
    calls: int
    tokens: int | None
    """As the server counted them; None where it did not, or for several choices together."""
    limit: int | None


def end_findings(ended: Ended) -> Iterator[TextFinding]:
    if ended.finish is None:
        yield _finding(ended, CUT, {"characters": ended.characters})
        return
    if ended.finish == "stop" and not ended.calls and (ended.characters == 0 or ended.blank):
        yield _finding(ended, EMPTY, {"characters": ended.characters})
    if reason := _mismatch(ended):
        counted = {"tokens": ended.tokens or 0, "limit": ended.limit or 0, "calls": ended.calls}
        yield _finding(ended, MISMATCH, {"reason": reason, **counted})


def _mismatch(ended: Ended) -> str | None:
    tokens, limit = ended.tokens, ended.limit
    if ended.finish == "tool_calls" and not ended.calls:
        return "tool_calls_without_a_call"
    if tokens is None or limit is None:
        return None
    if tokens > limit:
        return "more_than_the_limit"
    if ended.finish == "length" and 0 < tokens < limit * SHORT_OF_LIMIT and tokens < 16:
        return "length_far_below_the_limit"
    return None


def _finding(ended: Ended, kind: str, evidence: dict[str, float | int | bool | str]) -> TextFinding:
    return TextFinding(kind, ended.id, Severity.WARNING, NAME, {"char": ended.characters}, 1, evidence)
