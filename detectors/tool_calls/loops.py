"""Tool calls that run away inside one generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from checkengine.detectors.tool_calls.call import ToolCall
from checkengine.detectors.tool_calls.recogniser import ToolCallRecogniser


@dataclass(frozen=True, slots=True)
class CallLimits:
    identical_calls: int = 3
    """The same name and arguments so many times in one generation."""
    unclosed_tokens: int = 1024
    stray_closings: int = 8


@dataclass(frozen=True, slots=True)
class CallReading:
    """`repeated`: identical calls; `unclosed`: a call that does not end; `closings`: closing tags again and again."""

    kind: Literal["repeated", "unclosed", "closings"]
    count: int
    """Identical calls, tokens in the open call, or stray closing tags."""
    start: int
    """Token index where the second identical call, the open call or the stray closings began."""


@dataclass(slots=True)
class _Seen:
    count: int
    second_start: int


class CallLoops:
    """State of one generation; reports each time a limit is first reached and at every identical call beyond."""

    def __init__(self, limits: CallLimits | None = None, recogniser: ToolCallRecogniser | None = None) -> None:
        self.limits = limits or CallLimits()
        self.recogniser = recogniser or ToolCallRecogniser()
        self._seen: dict[bytes, _Seen] = {}
        self._token = -1
        self._first_stray = 0
        self._reported_open = -1

    def push(self, piece: bytes) -> CallReading | None:
        """Takes the next token's bytes."""
        self._token += 1
        recogniser = self.recogniser
        strays = recogniser.stray_closings
        calls = recogniser.push(piece)
        if calls:
            return self._count(calls)
        if recogniser.stray_closings != strays:
            return self._stray(recogniser.stray_closings)
        since = recogniser.open_since
        if since is not None and since != self._reported_open and recogniser.open_tokens > self.limits.unclosed_tokens:
            self._reported_open = since
            return CallReading("unclosed", recogniser.open_tokens, since)
        return None

    def _count(self, calls: tuple[ToolCall, ...]) -> CallReading | None:
        reading = None
        for call in calls:
            seen = self._seen.get(call.digest)
            if seen is None:
                if len(self._seen) >= 1024:
                    self._seen.pop(next(iter(self._seen)))
                self._seen[call.digest] = _Seen(1, -1)
                continue
            seen.count += 1
            if seen.count == 2:
                seen.second_start = call.start
            if seen.count >= self.limits.identical_calls:
                reading = CallReading("repeated", seen.count, seen.second_start)
        return reading

    def _stray(self, count: int) -> CallReading | None:
        if count == 1:
            self._first_stray = self._token
        return CallReading("closings", count, self._first_stray) if count == self.limits.stray_closings else None
