"""Broken logits, read from the `logprobs` that an OpenAI-compatible server returned beside a completion.

Limits first: servers launder. vLLM puts -9999 where a logprob is lower, and a row of NaN is often a row of equal
logprobs by the time it is returned, which is what the second rule is for. Without alternatives (`top_logprobs`) only
the chosen token's logprob is seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from checkengine.guards.finding import Severity
from checkengine.guards.settings import UniformSettings
from checkengine.guards.text import TextFinding, TextStart

FLAT_LOGPROB = -8.5
"""A row whose best alternative is below this is spread over 4,900 tokens or more: no model that works does that."""
FLAT_SPREAD = 1e-3
"""Nats between the alternatives of a row at which they are still alike: half precision, rounded twice."""
ROUNDING = 1e-3
"""Nats above 0 that rounding may leave; more is no logarithm of a probability."""


@dataclass(frozen=True, slots=True)
class _Row:
    chosen: object
    alternatives: tuple[float, ...]


class LogprobsGuard:
    """A finding of each kind at most, at the first bad token. Made with what is known of the completion."""

    name: str = "logits"
    version: int = 1

    def __init__(self, start: TextStart, settings: UniformSettings) -> None:
        self._id = start.id

    def read(self, logprobs: object) -> Iterator[TextFinding]:
        """`logprobs` as a chat completion has them ({"content": [...]}) or the older form ({"token_logprobs": [...]});
        anything else tells nothing."""
        rows = list(_rows(logprobs))
        broken = [index for index, row in enumerate(rows) if is_broken(row, index)]
        flat = [index for index, row in enumerate(rows) if is_flat(row)]
        if broken:
            null_only = all(rows[index].chosen is None for index in broken)
            # JSON has no NaN: writers turn it into null, but a server may also leave a logprob out.
            severity = Severity.WARNING if null_only else Severity.ERROR
            yield self._finding("logits.nonfinite", severity, broken, len(rows))
        if flat:
            yield self._finding("logits.uniform", Severity.ERROR, flat, len(rows))

    def _finding(self, kind: str, severity: Severity, bad: Sequence[int], rows: int) -> TextFinding:
        evidence = {"bad_tokens": len(bad), "tokens": rows}
        return TextFinding(kind, self._id, severity, self.name, {"token": bad[0]}, self.version, evidence)


def is_broken(row: _Row, index: int) -> bool:
    """The chosen token's logprob is missing, not finite or above 0. The first token of an echoed prompt has none."""
    if row.chosen is None:
        return index > 0
    chosen = _number(row.chosen)
    return chosen is not None and (not math.isfinite(chosen) or chosen > ROUNDING)


def is_flat(row: _Row) -> bool:
    """At least two alternatives, all alike and all improbable."""
    return (
        len(row.alternatives) >= 2
        and max(row.alternatives) <= FLAT_LOGPROB
        and max(row.alternatives) - min(row.alternatives) <= FLAT_SPREAD
        # A server's stand-in for "too low to say" is alike too, and tells nothing.
        and min(row.alternatives) > -100.0
    )


def _rows(logprobs: object) -> Iterator[_Row]:
    if not isinstance(logprobs, Mapping):
        return
    content = logprobs.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        for each in content:
            if isinstance(each, Mapping):
                yield _Row(each.get("logprob", 0.0), _of_list(each.get("top_logprobs")))
        return
    chosen, top = logprobs.get("token_logprobs"), logprobs.get("top_logprobs")
    if isinstance(chosen, Sequence) and not isinstance(chosen, str):
        rows = top if isinstance(top, Sequence) and len(top) == len(chosen) else [None] * len(chosen)
        for logprob, alternatives in zip(chosen, rows, strict=True):
            yield _Row(logprob, _numbers(alternatives.values()) if isinstance(alternatives, Mapping) else ())


def _of_list(alternatives: object) -> tuple[float, ...]:
    if not isinstance(alternatives, Sequence) or isinstance(alternatives, str):
        return ()
    return _numbers(each.get("logprob") for each in alternatives if isinstance(each, Mapping))


def _numbers(values: Iterable[object]) -> tuple[float, ...]:
    numbers = (_number(value) for value in values)
    return tuple(number for number in numbers if number is not None and math.isfinite(number))


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON's whole numbers have no limit
        return math.inf
