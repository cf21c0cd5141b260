"""Loops of tool calls across the turns of a conversation.

A loop is no progress: the same calls with the same results, and nothing changed in between. What counts is the pair of
a call (name, canonical arguments) and its result, volatile parts stripped; never the name or the arguments alone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from checkengine.detectors.tool_calls.canonical import canonical, digest
from checkengine.detectors.tool_calls.messages import Round, Said, ToolUse, UserTurn
from checkengine.detectors.tool_calls.outcomes import Outcome, outcome_of
from checkengine.detectors.tool_calls.purposes import Purpose, purpose_of
from checkengine.detectors.tool_calls.results import ResultBook, SameAs
from checkengine.detectors.tool_calls.volatile import lasting_arguments

Rule = Literal["identical", "cycle", "interleaved", "reworded", "switching", "retries"]


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Counts are of assistant messages: calls made side by side are one look at the world."""

    identical: int = 4
    """The same call with the same result in a row; one call before, a warning."""
    cycles: int = 3
    longest_period: int = 6
    interleaved: int = 4
    """The same call with the same result among the last `window` calls…"""
    reread: int = 8
    """…for what people rightly look at again: files, lists, notes."""
    window: int = 20
    reworded: int = 4
    """Differing queries with the same content as their result…"""
    fruitless: int = 6
    """…or with none."""
    switching: int = 5
    """The same wish put to differing tools."""
    relative: int = 24
    """The same acknowledged step (scroll, press, next): each one moves on."""
    retries: int = 25
    """Retries against an unreachable service."""
    unrecorded: int = 5
    """The same call whose result nobody recorded."""


@dataclass(frozen=True, slots=True)
class TurnReading:
    rule: Rule
    certain: bool
    """False: a warning, one call before it is certain."""
    message: int
    """Index of the message with the call that completed it."""
    first: int
    """Index of the message with the first call of the loop."""
    count: int
    """Calls, or cycles."""
    period: int = 1


@dataclass(slots=True)
class _Event:
    """One call; digests and word sets only, so that a conversation's state is small."""

    name: str
    call: bytes
    wish: bytes | None
    """Digest of the arguments' texts, whatever their names; None where they hold no words."""
    words: frozenset[str]
    purpose: Purpose
    message: int
    novel: bool
    result: bytes = b""
    key: bytes = b""
    """Of call and result…"""
    loose: bytes = b""
    """…and with all ids left out of the result: enough where the calls follow each other at once."""
    outcome: Outcome = Outcome.MISSING
    length: int = 0
    excused: bool = False
    """To make this call again is right."""


KEPT = 48
REMEMBERED = 4096
SHORT_REPLY = 80
SUBSTANTIVE = 48
"""Characters of a result below which equality says little."""


class TurnLoops:
    """State of one conversation: the last calls since the user last spoke."""

    def __init__(self, limits: TurnLimits | None = None) -> None:
        self.limits = limits or TurnLimits()
        self._seen: dict[bytes, None] = {}
        """Calls made before, oldest first."""
        self._results = ResultBook()
        self._last_user = ""
        self._said_since_call = True
        self._restart()

    def _restart(self) -> None:
        self._events: deque[_Event] = deque(maxlen=KEPT)
        self._since_change = 0
        """How many of the last events followed upon the last change of the world."""
        self._told: set[tuple[str, bytes]] = set()
        self._certain = False
        self._fresh_calls = 0

    def read(self, turns: Sequence[Round | UserTurn | Said]) -> Iterator[TurnReading]:
        """The turns so far; a call at their very end whose result is not there yet is only counted as a call."""
        last = len(turns) - 1
        for place, turn in enumerate(turns):
            if isinstance(turn, UserTurn):
                self._user(turn)
            elif isinstance(turn, Said):
                self._said_since_call = True
            else:
                yield from self._round(turn, is_last=place == last)

    def _user(self, turn: UserTurn) -> None:
        """What a user says is news, unless a program says the same again in the middle of the calls."""
        if self._said_since_call or not turn.text or turn.text != self._last_user:
            self._restart()
        self._last_user = turn.text

    def _round(self, turn: Round, *, is_last: bool) -> Iterator[TurnReading]:
        self._said_since_call = False
        events = [self._event(use, turn.message) for use in turn.uses]
        for event in events:
            if reading := self._warn(event):
                yield reading
        for event, use in zip(events, turn.uses, strict=True):
            if use.result is None and is_last:
                continue
            self._settle(event, use)
            if reading := self._judge(event):
                yield reading

    def _event(self, use: ToolUse, message: int) -> _Event:
        arguments = lasting_arguments(use.arguments)
        call = digest(canonical([use.name, arguments]))
        texts = [text.strip().lower() for text in _texts(arguments)]
        spoken = [text for text in texts if sum(map(str.isalpha, text)) >= 4]
        words = frozenset(islice(_words(spoken), 64))
        wish = digest(canonical(sorted(spoken))) if spoken else None
        novel = call not in self._seen
        if len(self._seen) >= REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        self._seen[call] = None
        return _Event(use.name, call, wish, words, purpose_of(use.name, arguments), message, novel)

    def _settle(self, event: _Event, use: ToolUse) -> None:
        text = use.result
        event.outcome = outcome_of(text, event.purpose, failed=use.failed)
        event.length = len(text) if text is not None else 0
        event.result = digest(text) if text is not None else b"unrecorded"
        same = SameAs(event.result, event.result)
        if text is not None:
            same = self._results.enter(event.call, text, exact=event.purpose.fresh)
        event.key, event.loose = event.call + same.strict, event.call + same.loose
        event.excused = self._is_excused(event)
        self._push(event)

    def _is_excused(self, event: _Event) -> bool:
        if event.purpose.waits or event.outcome in (Outcome.PENDING, Outcome.UNREACHED):
            return True
        return bool(self._events) and self._events[-1].purpose.waits and event.purpose.polls

    def _push(self, event: _Event) -> None:
        finds = event.novel and all(one.result != event.result for one in self._events)
        self._events.append(event)
        changed = event.novel and event.purpose.changes and event.outcome not in (Outcome.ERROR, Outcome.UNREACHED)
        self._since_change = 1 if changed else min(self._since_change + 1, KEPT)
        self._fresh_calls = self._fresh_calls + 1 if finds else 0
        if changed or self._fresh_calls >= 5:
            self._certain = False
            self._told.clear()

    def _warn(self, event: _Event) -> TurnReading | None:
        """The third identical call, its result not yet known."""
        run = self._run(event.call, by_call=True)
        if self._certain or len(run) < 1 or any(one.excused for one in run) or event.purpose.waits:
            return None
        if len({one.loose for one in run}) > 1 or self._steps_on(run[0]) or run[0].outcome == Outcome.MISSING:
            return None
        if _messages(run) + 1 < self.limits.identical - 1 or run[-1].message == event.message:
            return None
        if ("identical", event.call) in self._told:
            return None
        self._told.add(("identical", event.call))
        return TurnReading("identical", False, event.message, run[0].message, _messages(run) + 1)

    def _judge(self, event: _Event) -> TurnReading | None:
        if self._certain:
            return None
        if event.excused:
            return self._retried(event)
        reading = (
            self._identical(event)
            or self._cycle(event)
            or self._interleaved(event)
            or self._reworded(event)
            or self._switched(event)
        )
        self._certain = reading is not None
        return reading

    def _run(self, key: bytes, *, by_call: bool = False) -> list[_Event]:
        """The last events in a row with this loose key, oldest first; waiting in between does not count."""
        run: list[_Event] = []
        for one in reversed(self._events):
            if (one.call if by_call else one.loose) == key:
                run.append(one)
            elif not one.purpose.waits:
                break
        return run[::-1]

    def _steps_on(self, event: _Event) -> bool:
        """A call like the last one moves on from it, as far as its short reply lets one know."""
        if event.purpose.fresh:
            return True
        told_little = event.outcome in (Outcome.ACKNOWLEDGED, Outcome.EMPTY) or event.length <= SHORT_REPLY
        return event.purpose.relative and told_little and event.outcome != Outcome.ERROR

    def _identical(self, event: _Event) -> TurnReading | None:
        run = self._run(event.loose)
        needed = self.limits.identical
        if event.outcome == Outcome.MISSING:
            needed = self.limits.unrecorded
        elif self._steps_on(event):
            needed = self.limits.relative
        if _messages(run) < needed or any(one.excused for one in run):
            return None
        return TurnReading("identical", True, event.message, run[0].message, _messages(run))

    def _retried(self, event: _Event) -> TurnReading | None:
        run = self._run(event.loose)
        if event.outcome != Outcome.UNREACHED or _messages(run) < self.limits.retries:
            return None
        self._certain = True
        return TurnReading("retries", False, event.message, run[0].message, _messages(run))

    def _cycle(self, event: _Event) -> TurnReading | None:
        events = [one for one in self._events if not one.purpose.waits]
        keys = [one.key for one in events]
        for period in range(2, self.limits.longest_period + 1):
            length = period * self.limits.cycles
            if len(keys) < length:
                return None
            last = keys[-length:]
            if last[period:] != last[:-period] or len(set(last[:period])) == 1:
                continue
            cycle = events[-length:]
            if (
                any(one.excused or one.outcome == Outcome.MISSING for one in cycle)
                or _messages(cycle) < self.limits.cycles
            ):
                continue
            if any(map(self._steps_on, cycle)) and all(
                self._steps_on(one) or one.outcome == Outcome.ACKNOWLEDGED for one in cycle
            ):
                continue
            return TurnReading("cycle", True, event.message, cycle[0].message, self.limits.cycles, period)
        return None

    def _recent(self) -> list[_Event]:
        """Since the world last changed, at most a window; waiting left out."""
        recent = list(self._events)[-min(self._since_change, self.limits.window) :]
        return [one for one in recent if not one.purpose.waits]

    def _interleaved(self, event: _Event) -> TurnReading | None:
        if event.outcome in (Outcome.MISSING, Outcome.ACKNOWLEDGED):
            return None
        if event.purpose.tells_time or self._steps_on(event):
            return None
        recent = self._recent()
        same = [one for one in recent if one.key == event.key]
        needed = (
            self.limits.reread
            if event.purpose.looks_again and self._is_sparse(recent, same)
            else self.limits.interleaved
        )
        if _messages(same) < needed or any(one.excused for one in same):
            return None
        return TurnReading("interleaved", True, event.message, same[0].message, _messages(same))

    def _is_sparse(self, recent: Sequence[_Event], same: Sequence[_Event]) -> bool:
        """Other calls, most of them new ones, lie between the looks."""
        span = recent[recent.index(same[0]) :]
        others = [one for one in span if one.key != same[0].key]
        return len(others) >= 2 * (len(same) - 1) and 2 * sum(one.novel for one in others) > len(others)

    def _reworded(self, event: _Event) -> TurnReading | None:
        if (
            not event.words
            or event.purpose.changes
            or event.outcome not in (Outcome.CONTENT, Outcome.EMPTY, Outcome.ERROR)
        ):
            return None
        fruitless, short = event.outcome != Outcome.CONTENT, event.length < SUBSTANTIVE
        if not event.purpose.queries or ((fruitless or short) and len(event.words) < 2):
            return None
        same = [
            one
            for one in self._recent()[-12:]
            if one.purpose.queries and (one.result == event.result or (fruitless and one.outcome == event.outcome))
        ]
        if fruitless or short:
            same = [one for one in same if one is event or _alike(one.words, event.words)]
        needed = self.limits.fruitless if fruitless else self.limits.reworded + short
        if _messages(same) < needed or len({one.wish for one in same}) < 3 or any(one.excused for one in same):
            return None
        return TurnReading("reworded", True, event.message, same[0].message, _messages(same))

    def _same_wish(self, one: _Event, event: _Event, vain: tuple[Outcome, ...]) -> bool:
        """The same words and the same result or none in vain; or words alike and the very same result in vain."""
        if one.excused or one.purpose.changes:
            return False
        in_vain = event.outcome in vain and one.outcome in vain
        if one.wish == event.wish:
            return one.result == event.result or in_vain
        return in_vain and one.result == event.result and _alike(one.words, event.words)

    def _switched(self, event: _Event) -> TurnReading | None:
        if event.wish is None or event.purpose.changes:
            return None
        vain = (Outcome.EMPTY, Outcome.ERROR)
        if event.outcome not in (*vain, Outcome.CONTENT):
            return None
        same = [one for one in self._recent() if self._same_wish(one, event, vain)]
        exact = sum(one.wish == event.wish for one in same) == len(same)
        if len({one.name for one in same}) < 2 or _messages(same) < self.limits.switching + (not exact):
            return None
        return TurnReading("switching", True, event.message, same[0].message, _messages(same))


def _messages(events: Iterable[_Event]) -> int:
    return len({event.message for event in events})


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value[:2000]
    elif depth < 4 and isinstance(value, dict):
        for item in islice(value.values(), 64):
            yield from _texts(item, depth + 1)
    elif depth < 4 and isinstance(value, (list, tuple)):
        for item in islice(value, 64):
            yield from _texts(item, depth + 1)


_WORD = re.compile(r"[^\W\d_]{3,}")


def _words(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _WORD.findall(text)


def _alike(one: frozenset[str], other: frozenset[str]) -> bool:
    return 3 * len(one & other) >= len(one | other)
