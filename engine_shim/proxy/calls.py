"""Tool calls in their parts, as the many dialects of streams have them, read by the guard of calls in text.

Nothing single is the key (research of dialects): some servers give every call the index 0, some no index, some count
from 1; ids come first, later, empty or again and again. So an id and an index both lead to a call; a new id, or a new
name on a call whose arguments are whole, opens another.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from checkengine.detectors.tool_calls.json_span import JsonSpan

OPENING = '<tool_call>{"name": '
BETWEEN = ', "arguments": '
CLOSING = "}</tool_call>"
MOST_CALLS = 1024
MOST_WAITING = 1 << 20
"""Characters of calls that wait for another one to be whole: beyond it no more calls are read."""
SHORT = 64
"""Characters up to which what is no object and no list is tried as JSON."""


class _Call:
    """Whether its arguments are whole is followed as they come: they may come in 100,000 parts."""

    __slots__ = ("_closed", "_length", "_span", "arguments", "id", "name", "opened")

    def __init__(self) -> None:
        self.id, self.name = "", ""
        self.arguments: list[str] = []
        self.opened = False
        """Its beginning was put out, and with it what is in `arguments`."""
        self._span, self._length, self._closed = JsonSpan(), 0, False

    def add(self, arguments: str) -> None:
        if not self.opened:
            self.arguments.append(arguments)
        self._length += len(arguments)
        self._closed = self._closed or self._span.feed(arguments.encode("utf-8", "replace"), 0) >= 0

    @property
    def is_whole(self) -> bool:
        return self._closed or (self._length <= SHORT and _whole("".join(self.arguments)))


class CallText:
    """Turns deltas into the text that a guard reads: `<tool_call>{"name": …, "arguments": …}</tool_call>`. One call is
    put out as it comes; parts of others that come between wait until it is whole."""

    def __init__(self) -> None:
        self.count = 0
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        self._open: _Call | None = None
        self._waiting: deque[_Call] = deque()
        self._waiting_length = 0
        self._given_up = False

    def push(self, deltas: object) -> str:
        """Never raises: what is no tool call tells nothing."""
        if not isinstance(deltas, list) or self._given_up:
            return ""
        return "".join(self._one(delta) for delta in deltas if isinstance(delta, dict))

    def function_call(self, delta: object) -> str:
        """The older form: one function call, without id and index."""
        return self._one({"index": 0, "function": delta}) if isinstance(delta, dict) else ""

    def end(self, *, cut_off: bool = False) -> str:
        """`cut_off`: the answer reached its limit, so that a call may rightly be incomplete."""
        text = ""
        while (call := self._open) is not None and not self._given_up:
            if not cut_off or call.is_whole:
                text += self._closing(call)
            self._open = self._waiting.popleft() if self._waiting else None
            text += self._put("") if self._open else ""
        return text

    def _one(self, delta: dict[str, Any]) -> str:
        function = delta.get("function")
        function = function if isinstance(function, dict) else {}
        identity, index = _text(delta.get("id")), delta.get("index")
        index = index if type(index) is int else None
        name, arguments = _text(function.get("name")), _arguments(function.get("arguments"))
        call = self._known(identity, index, name) or self._new(identity, index)
        if call is None:
            return ""
        call.name = call.name or name
        if arguments:
            call.add(arguments)
        if call is self._open:
            return self._put(arguments)
        self._waiting_length += len(arguments)
        self._given_up = self._waiting_length > MOST_WAITING
        return self._next() if self._open is not None and self._open.is_whole else ""

    def _known(self, identity: str, index: int | None, name: str) -> _Call | None:
        if identity and (call := self._by_id.get(identity)):
            return call
        call = self._by_index.get(index) if index is not None else self._open
        if call is None or (identity and call.id) or (name and call.name and call.is_whole):
            return None
        if identity:
            call.id = identity
            self._by_id[identity] = call
        return call

    def _new(self, identity: str, index: int | None) -> _Call | None:
        if self.count >= MOST_CALLS:
            return None
        self.count += 1
        call = _Call()
        call.id = identity
        if identity:
            self._by_id[identity] = call
        if index is not None:
            self._by_index[index] = call
        if self._open is None:
            self._open = call
        else:
            self._waiting.append(call)
        return call

    def _next(self) -> str:
        """The open call is whole, and another one speaks."""
        assert self._open is not None
        text = self._closing(self._open)
        self._open = self._waiting.popleft() if self._waiting else None
        self._waiting_length -= sum(map(len, self._open.arguments)) if self._open else 0
        return text + (self._put("") if self._open else "")

    def _put(self, arguments: str) -> str:
        """Of the open call: `arguments`, and what of it had to wait."""
        call = self._open
        if call is None or call.opened or not call.arguments:
            return arguments
        call.opened = True
        return OPENING + _quoted(call.name) + BETWEEN + "".join(call.arguments)

    def _closing(self, call: _Call) -> str:
        return CLOSING if call.opened else OPENING + _quoted(call.name) + BETWEEN + "{}" + CLOSING


def _quoted(text: str) -> str:
    return msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else ""


def _whole(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False
    return True
