"""Tool calls in a stream of token pieces; delimiters may be single tokens or be split anywhere."""

from __future__ import annotations

import re

from checkengine.detectors.tool_calls.call import ToolCall, call_from_payload, is_call, named_call
from checkengine.detectors.tool_calls.delimiters import BARE_JSON, DIALECTS, MISTRAL, MISTRAL_ARGUMENTS, Dialect
from checkengine.detectors.tool_calls.json_span import JsonSpan

PAYLOAD_LIMIT = 65_536
"""Bytes of one call that are kept; a longer call counts as unparsable and is compared by its first bytes."""
_BARE = re.compile(rb'[\s;]*(\{\s*"(?:name|type|function)"\s*:)')
_BARE_LIMIT = 64
_NAME_LIMIT = 256
_SPACE = b" \t\r\n"


class ToolCallRecogniser:
    """State of one generation. Outside calls a token costs two byte searches."""

    def __init__(self, dialects: tuple[Dialect, ...] = DIALECTS, *, bare_json: bool = True) -> None:
        self._openings = {d.opening: d for d in dialects}
        self._tags = (*self._openings, *(d.closing for d in dialects if d.closing))
        self._any_tag = re.compile(b"|".join(re.escape(tag) for tag in self._tags))
        self._firsts = tuple({tag[:1] for tag in self._tags})
        self._token = -1
        self._tail = b""
        self._tail_start = 0
        self._piece_length = 0
        self._bare_possible = bare_json
        self._dialect: Dialect | None = None
        self._payload = bytearray()
        self._in_list = False
        self._name: bytes | None = None
        self._span: JsonSpan | None = None
        self._start = 0
        self._completed: list[ToolCall] = []
        self.calls = 0
        """Completed calls."""
        self.stray_closings = 0
        """Closing tags with no call open, since the last opening."""

    @property
    def open_since(self) -> int | None:
        """Token index at which the call that is still open began."""
        return self._start if self._dialect is not None and self._is_certain() else None

    @property
    def open_tokens(self) -> int:
        """Tokens of the call that is still open; 0 where none is."""
        return self._token - self._start + 1 if self.open_since is not None else 0

    def push(self, piece: bytes) -> tuple[ToolCall, ...]:
        """Takes the next token's bytes; returns the calls that it completes."""
        self._token += 1
        if self._dialect is None and not self._tail and not self._bare_possible:
            for first in self._firsts:
                if first in piece:
                    break
            else:
                return ()
        if not self._tail:
            self._tail_start = self._token
        data: bytes | None = self._tail + piece
        self._piece_length, self._tail = len(piece), b""
        while data is not None:
            data = self._idle(data) if self._dialect is None else self._inside(self._dialect, data)
        completed, self._completed = tuple(self._completed), []
        return completed

    def _idle(self, data: bytes) -> bytes | None:
        """Looks for a tag; returns what follows it, or None when all is taken."""
        if self._bare_possible:
            return self._maybe_bare(data)
        tag = self._any_tag.search(data)
        if tag is None:
            self._hold(self._beginning_of_a_tag(data), data)
            return None
        dialect = self._openings.get(tag.group())
        if dialect is None:
            self.stray_closings += 1
        else:
            self._open(dialect, self._token_of(data, tag.start()))
        return data[tag.end() :]

    def _hold(self, tail: bytes, data: bytes) -> None:
        """Keeps what may become a tag, and in which token it began."""
        self._tail_start = self._token_of(data, len(data) - len(tail))
        self._tail = tail

    def _token_of(self, data: bytes, at: int) -> int:
        """A held tail is one beginning of a tag, so what begins inside it began in its first token."""
        from_end = len(data) - at
        return self._tail_start if from_end > self._piece_length else self._token

    def _maybe_bare(self, data: bytes) -> bytes | None:
        """A generation, or what follows a Llama call, may begin with a call's JSON and no tag."""
        match = _BARE.match(data)
        if match is not None:
            self._open(BARE_JSON, self._token_of(data, match.start(1)))
            return data[match.start(1) :]
        rest = data.lstrip(_SPACE + b";")
        if (rest and rest[:1] != b"{") or len(data) >= _BARE_LIMIT:
            self._bare_possible = False
            return data
        self._hold(data, data)
        return None

    def _beginning_of_a_tag(self, data: bytes) -> bytes:
        """The longest end of the data that a further token could complete to a tag."""
        longest = max(len(tag) for tag in self._tags) - 1
        for at in range(max(0, len(data) - longest), len(data)):
            end = data[at:]
            if any(tag.startswith(end) for tag in self._tags):
                return end
        return b""

    def _open(self, dialect: Dialect, start: int) -> None:
        self._dialect, self._start = dialect, start
        self._bare_possible = False
        self._in_list, self._name, self._span = False, None, None
        self._payload.clear()
        self.stray_closings = 0

    def _close(self, *, bare_may_follow: bool = False) -> None:
        self._dialect = None
        self._bare_possible = bare_may_follow

    def _inside(self, dialect: Dialect, data: bytes) -> bytes | None:
        if dialect.closing is not None:
            return self._until_closing(dialect.opening, dialect.closing, data)
        if self._span is not None:
            return self._until_value_ends(data, 0)
        return self._before_value(dialect, data)

    def _until_closing(self, opening: bytes, closing: bytes, data: bytes) -> bytes | None:
        """Up to the closing tag; an opening tag before it ends a call that was never closed."""
        scanned = max(0, len(self._payload) - max(len(opening), len(closing)) + 1)
        window = bytes(self._payload[scanned:]) + data
        ends = [at for at in (window.find(closing), window.find(opening)) if at >= 0]
        if not ends:
            self._keep(data)
            return None
        at = min(ends)
        payload = bytes(self._payload[:scanned]) + window[:at]
        self._complete(call_from_payload(payload, self._start, self._token))
        if window.startswith(closing, at):
            self._close()
            return window[at + len(closing) :]
        self._open(self._openings[opening], self._token)
        return window[at + len(opening) :]

    def _before_value(self, dialect: Dialect, data: bytes) -> bytes | None:
        """From the tag, or the comma in a list, to the brace that begins the arguments."""
        data = bytes(self._payload) + data
        self._payload.clear()
        rest = data.lstrip(_SPACE + (b"," if self._in_list else b""))
        if not rest:
            return None
        first = rest[:1]
        if first == b"{":
            self._span = JsonSpan()
            return self._until_value_ends(rest, 0)
        if first == b"[" and dialect is MISTRAL and not self._in_list and not rest.startswith(MISTRAL_ARGUMENTS[:2]):
            if len(rest) == 1:
                self._payload += rest
                return None
            self._in_list = True
            return rest[1:]
        if dialect is MISTRAL and not self._in_list:
            return self._name_then_value(rest)
        self._close()
        return rest[1:] if first == b"]" else rest

    def _name_then_value(self, data: bytes) -> bytes | None:
        brace = data.find(b"{")
        if brace < 0:
            if len(data) > _NAME_LIMIT or b"\n" in data:
                self._close()
                return data
            self._payload += data
            return None
        self._name = data[:brace].partition(b"[")[0]
        self._span = JsonSpan()
        return self._until_value_ends(data[brace:], 0)

    def _until_value_ends(self, data: bytes, at: int) -> bytes | None:
        assert self._span is not None
        end = self._span.feed(data, at)
        if end < 0:
            self._keep(data)
            return None
        payload, self._span = bytes(self._payload) + data[:end], None
        self._payload.clear()
        self._finish_value(payload)
        return data[end:]

    def _finish_value(self, payload: bytes) -> None:
        if self._name is not None:
            self._complete(named_call(self._name, payload, self._start, self._token))
            self._close()
        elif self._in_list:
            self._complete(call_from_payload(payload, self._start, self._token))
            self._start = self._token
        else:
            if self._dialect is not BARE_JSON or is_call(payload):
                self._complete(call_from_payload(payload, self._start, self._token))
                self._close(bare_may_follow=True)
            else:
                self._close()

    def _keep(self, data: bytes) -> None:
        """Of an overlong call the first bytes stay, and the last ones so that its closing tag is seen."""
        self._payload += data
        if len(self._payload) > PAYLOAD_LIMIT + 1024:
            del self._payload[PAYLOAD_LIMIT : len(self._payload) - 64]

    def _complete(self, call: ToolCall) -> None:
        self.calls += 1
        self._completed.append(call)

    def _is_certain(self) -> bool:
        """An answer that merely begins like a bare call is not one until arguments appear."""
        if self._dialect is not BARE_JSON:
            return True
        head = bytes(self._payload[:1024])
        return b'"parameters"' in head or b'"arguments"' in head
