"""Tool calls that run away inside one generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from checkengine.detectors.tool_calls.call import ToolCall
from checkengine.detectors.tool_calls.recogniser import ToolCallRecogniser

REMEMBERED_CALLS = 1024
CallKind = Literal["repeated", "unclosed", "endless", "closings", "openings"]


@dataclass(frozen=True, slots=True)
class CallLimits:
    identical_calls: int = 3
    """The same name and arguments so many times in one generation."""
    unclosed_tokens: int = 8192
    stray_closings: int = 8
    """Closing tags with no call open, or opening tags with no closing one between them."""


@dataclass(frozen=True, slots=True)
class CallReading:
    """`repeated`: identical calls; `unclosed`: a call that does not end; `endless`: one whose text repeats;
    `closings`, `openings`: tags of one kind again and again."""

    kind: CallKind
    count: int
    """Identical calls, tokens in the open call, copies of the text, or tags."""
    start: int
    """Token index where the second identical call, the open call or the tags began."""


@dataclass(slots=True)
class _Seen:
    count: int
    second_start: int


class CallLoops:
    """State of one generation; reports each time a limit is first reached and at every identical call beyond."""

    def __init__(self, limits: CallLimits | None = None, recogniser: ToolCallRecogniser | None = None) -> None:
        self.limits = limits or CallLimits()
        self.recogniser = recogniser or ToolCallRecogniser()
        self.completed: tuple[ToolCall, ...] = ()
        """Calls that the last piece completed."""
        self._seen: dict[bytes, _Seen] = {}
        self._token = -1
        self._first_stray = 0
        self._first_unclosed = 0
        self._reported_open = -1
        self._reported_endless = -1

    @property
    def is_idle(self) -> bool:
        """As the recogniser's: pieces in which no tag stands or begins may be left out."""
        return self.recogniser.is_idle

    def push(self, piece: bytes, token: int | None = None) -> CallReading | None:
        """Takes the next token's bytes; `token` is its index where pieces before it were left out."""
        self._token = self._token + 1 if token is None else token
        recogniser = self.recogniser
        strays, unclosed = recogniser.stray_closings, recogniser.unclosed_calls
        self.completed = calls = recogniser.push(piece, token)
        told = self._count(calls) if calls else None
        if told is None and recogniser.stray_closings > strays:
            told = self._stray(strays, recogniser.stray_closings)
        if told is None and recogniser.unclosed_calls > unclosed:
            told = self._unclosed(unclosed, recogniser.unclosed_calls)
        return told or (None if recogniser.is_idle else self._open())

    def ended_endless(self) -> CallReading | None:
        """Of a call that the last piece ended: its text had repeated, which a piece that ended before it would have
        shown."""
        if self.recogniser.repeated_before_its_end is None:
            return None
        copies, since = self.recogniser.repeated_before_its_end
        if since == self._reported_endless:
            return None
        self._reported_endless = since
        return CallReading("endless", copies, since)

    def _open(self) -> CallReading | None:
        recogniser = self.recogniser
        copies = recogniser.repeats
        if not copies and recogniser.open_tokens <= self.limits.unclosed_tokens:
            return None
        since = recogniser.open_since
        if since is None:
            return None
        if copies and since != self._reported_endless:
            self._reported_endless = since
            return CallReading("endless", copies, since)
        if since != self._reported_open and recogniser.open_tokens > self.limits.unclosed_tokens:
            self._reported_open = since
            return CallReading("unclosed", recogniser.open_tokens, since)
        return None

    def _count(self, calls: tuple[ToolCall, ...]) -> CallReading | None:
        reading = None
        for call in calls:
            if not call.looks_like_one:
                continue
            if call.end - call.start > self.limits.unclosed_tokens and call.start != self._reported_open:
                self._reported_open = call.start
                reading = CallReading("unclosed", call.end - call.start, call.start)
            seen = self._seen.get(call.digest)
            if seen is None:
                if len(self._seen) >= REMEMBERED_CALLS:
                    self._seen.pop(next(iter(self._seen)))
                self._seen[call.digest] = _Seen(1, -1)
                continue
            seen.count += 1
            if seen.count == 2:
                seen.second_start = call.start
            if seen.count >= self.limits.identical_calls:
                reading = CallReading("repeated", seen.count, seen.second_start)
        return reading

    def _stray(self, before: int, count: int) -> CallReading | None:
        if before == 0:
            self._first_stray = self.recogniser.last_tag
        limit = self.limits.stray_closings
        return CallReading("closings", count, self._first_stray) if before < limit <= count else None

    def _unclosed(self, before: int, count: int) -> CallReading | None:
        if before == 0:
            self._first_unclosed = self.recogniser.last_tag
        others = self.limits.stray_closings - 1  # the last opening tag of them is open now
        return CallReading("openings", count, self._first_unclosed) if before < others <= count else None
