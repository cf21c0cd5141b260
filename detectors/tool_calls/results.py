"""Which results of one call are the same, volatile parts left out."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

from checkengine.detectors.tool_calls.canonical import digest
from checkengine.detectors.tool_calls.volatile import MOST_TEXT, masked, same_but_for_ids, without_ids

REMEMBERED_CALLS = 64
REMEMBERED_RESULTS = 2
"""Of each call; about 2 MB in all at most."""


@dataclass(frozen=True, slots=True)
class SameAs:
    """Two digests: equal where results are equal but for clocks, durations and the like, and but for all ids too."""

    strict: bytes
    loose: bytes


def _cut(text: str) -> tuple[str, str, str]:
    """Volatile parts stand at the head or the foot of a long text; its middle must be equal. The foot begins at white
    space, so that it begins at the same place where its own length varies a little."""
    if len(text) <= MOST_TEXT:
        return text, "", ""
    head, last = MOST_TEXT // 2, len(text) - MOST_TEXT // 4
    foot = max(text.rfind("\n", head, last), head)
    foot = max(text.rfind(" ", head, last), head) if foot == head else foot
    foot = max(foot, len(text) - MOST_TEXT // 2)
    return text[:head], text[head:foot], text[foot:]


class _Result:
    """What is worked out only where a call comes back with another text."""

    def __init__(self, text: str) -> None:
        self.digest = digest(text)
        self.same = SameAs(self.digest, self.digest)
        head, middle, tail = _cut(text)
        self._text = head + tail
        self._rest = digest(middle)

    @cached_property
    def masked(self) -> str:
        return masked(self._text)

    @cached_property
    def bare(self) -> str:
        return without_ids(self.masked)

    def is_strictly(self, other: _Result) -> bool:
        return self._rest == other._rest and self.masked == other.masked

    def is_loosely(self, other: _Result) -> bool:
        return self._rest == other._rest and (self.bare == other.bare or same_but_for_ids(self.bare, other.bare))


class ResultBook:
    """The last results of the last calls of a conversation."""

    def __init__(self) -> None:
        self._results: OrderedDict[bytes, list[_Result]] = OrderedDict()

    def enter(self, call: bytes, text: str, *, exact: bool) -> SameAs:
        """`exact`: every change counts, as with random numbers."""
        result = _Result(text)
        known = self._results.setdefault(call, [])
        self._results.move_to_end(call)
        if len(self._results) > REMEMBERED_CALLS:
            self._results.popitem(last=False)
        result.same = self._same(result, known, exact=exact)
        if all(one.digest != result.digest for one in known):
            known[:] = [*known, result][-REMEMBERED_RESULTS:]
        return result.same

    def _same(self, result: _Result, known: list[_Result], *, exact: bool) -> SameAs:
        for one in reversed(known):
            if one.digest == result.digest:
                return one.same
        if exact:
            return result.same
        strict = next((one.same.strict for one in reversed(known) if result.is_strictly(one)), result.digest)
        loose = next((one.same.loose for one in reversed(known) if result.is_loosely(one)), result.digest)
        return SameAs(strict, loose)
