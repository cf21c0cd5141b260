"""Tool calls in a stream of token pieces; delimiters may be single tokens or be split anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable

from checkengine.detectors.tool_calls.call import ToolCall, call_from_part, calls_from_payload, is_call, named_call
from checkengine.detectors.tool_calls.cycle import TailCycle
from checkengine.detectors.tool_calls.delimiters import (
    BARE_JSON,
    CALL_HEAD,
    DIALECTS,
    MISTRAL,
    MISTRAL_ARGUMENTS,
    Dialect,
)
from checkengine.detectors.tool_calls.json_span import JsonSpan
from checkengine.detectors.tool_calls.tags import tags_of

PAYLOAD_LIMIT = 65_536
"""Bytes of one call that are kept; a longer call counts as unparsable and is compared by its first bytes."""
_LONGEST_TAG = 64
_BARE = re.compile(rb'[\s;]*(\{\s*"(?:name|type|function)"\s*:)')
_BARE_LIMIT = 64
_NAME_LIMIT = 256
_SPACE = b" \t\r\n"


class ToolCallRecogniser:
    """State of one generation, at most about 70 KB. Outside calls a token costs one byte search, or nothing where the
    caller leaves out tokens that cannot matter (`is_idle`, `Tags.loud_tokens`)."""

    def __init__(self, dialects: tuple[Dialect, ...] = DIALECTS, *, bare_json: bool = True) -> None:
        self._tags = tags_of(dialects)
        self._token = -1
        self._tail = b""
        self._tail_start = 0
        self._piece_length = 0
        self._bare_possible = bare_json
        self._dialect: Dialect | None = None
        self._payload = bytearray()
        self._certain = False
        """The open call has proved to be one…"""
        self._decided = True
        """The opening tag has proved to open a call."""
        self._in_list = False
        self._name: bytes | None = None
        self._span: JsonSpan | None = None
        self._start = 0
        self._completed: list[ToolCall] = []
        self._cycle = TailCycle()
        self.repeated_before_its_end: tuple[int, int] | None = None
        """Of a call that the last piece ended: copies of one piece of text in it, and the token in which it began."""
        self.calls = 0
        """Completed calls."""
        self.stray_closings = 0
        """Closing tags with no call open, since the last opening."""
        self.unclosed_calls = 0
        """Calls in a row that the next opening tag ended."""
        self.last_tag = 0
        """Token index at which the last tag began that was counted in one of these."""
        self._mark = 0
        """Token in which the open call's last `<` stands: a tag may have begun there…"""
        self._last_angle = 0
        """…and the length of the payload behind that token."""

    @property
    def is_idle(self) -> bool:
        """No call is open and no tag has begun: a piece in which no tag stands or begins changes nothing."""
        return self._dialect is None and not self._tail and not self._bare_possible

    @property
    def open_since(self) -> int | None:
        """Token index at which the call that is still open began."""
        if self._dialect is None or not (self._certain or self._is_certain(self._payload)):
            return None
        self._certain = True
        return self._start

    @property
    def open_tokens(self) -> int:
        """Tokens of the call that is still open; 0 where none is."""
        return self._token - self._start + 1 if self.open_since is not None else 0

    @property
    def repeats(self) -> int:
        """Copies of one piece of text, side by side, at the end of the call that is still open; 0 below the floor."""
        return self._cycle.copies if self._dialect is not None else 0

    def push(self, piece: bytes, token: int | None = None) -> tuple[ToolCall, ...]:
        """Takes the next token's bytes; returns the calls that it completes. `token` is its index, where some of the
        pieces before it were left out."""
        self._token = self._token + 1 if token is None else token
        self.repeated_before_its_end = None
        if self._dialect is None and not self._tail and not self._bare_possible and not self._tags.may_begin(piece):
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
        tag = self._tags.search(data)
        if tag is None:
            self._hold(self._tags.beginning(data), data)
            return None
        text = tag.group()
        dialect = self._tags.openings.get(text)
        if dialect is not None:
            self._open(dialect, self._token_of(data, tag.start()))
        elif text in self._tags.section_openings:
            self.stray_closings = 0
        else:
            self.stray_closings += 1
            self.last_tag = self._token_of(data, tag.start())
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
            # Behind another call it counts from that one's tag, so that cuts between them change nothing.
            start = self._start if self.calls else self._token_of(data, match.start(1))
            self._open(BARE_JSON, start)
            return data[match.start(1) :]
        rest = data.lstrip(_SPACE + b";")
        if (rest and rest[:1] != b"{") or len(data) >= _BARE_LIMIT:
            self._bare_possible = False
            return data
        self._hold(data, data)
        return None

    def _open(self, dialect: Dialect, start: int) -> None:
        self._dialect, self._start = dialect, start
        self._bare_possible = False
        self._in_list, self._name, self._span = False, None, None
        self._payload.clear()
        self._decided = dialect.is_call is None
        self._certain = False
        self._last_angle = -_LONGEST_TAG
        self._cycle = TailCycle()
        self.stray_closings = 0

    def _close(self, *, bare_may_follow: bool = False) -> None:
        self._dialect = None
        self._payload.clear()
        self._bare_possible = bare_may_follow

    def _inside(self, dialect: Dialect, data: bytes) -> bytes | None:
        if not self._decided and dialect.is_call is not None:
            return self._decide(dialect.is_call, data)
        if dialect.closing is not None:
            return self._until_closing(dialect.opening, dialect.closing, data)
        if self._span is not None:
            return self._until_value_ends(data)
        return self._before_value(dialect, data)

    def _decide(self, is_call: Callable[[bytes], bool | None], data: bytes) -> bytes | None:
        """A tag that other text uses too: what follows tells whether it opens a call."""
        data = bytes(self._payload) + data
        self._payload.clear()
        verdict = is_call(data)
        if verdict is None:
            self._payload += data
            return None
        if verdict:
            self._decided = True
        else:
            self._tail_start = self._start
            self._close()
        return data

    def _until_closing(self, opening: bytes, closing: bytes, data: bytes) -> bytes | None:
        """Up to the closing tag; an opening tag before it ends a call that was never closed."""
        if b"<" not in data and len(self._payload) - self._last_angle > _LONGEST_TAG:
            self._keep(data)
            return None
        scanned = max(0, len(self._payload) - max(len(opening), len(closing)) + 1)
        window = bytes(self._payload[scanned:]) + data
        ends = [at for at in (window.find(closing), window.find(opening)) if at >= 0]
        if not ends:
            self._keep(data)
            return None
        at = min(ends)
        payload = bytes(self._payload[:scanned]) + window[:at]
        if window.startswith(closing, at):
            self._complete(payload)
            self._close()
            return window[at + len(closing) :]
        self._never_closed(payload)
        self.last_tag = self._mark if scanned + at < len(self._payload) else self._token
        self._open(self._tags.openings[opening], self.last_tag)
        return window[at + len(opening) :]

    def _never_closed(self, payload: bytes) -> None:
        unclosed = self.unclosed_calls
        if CALL_HEAD.match(payload):
            self._complete(payload)
        self.unclosed_calls = unclosed + 1

    def _before_value(self, dialect: Dialect, data: bytes) -> bytes | None:
        """From the tag, or the comma in a list, to the brace that begins the arguments."""
        data = bytes(self._payload) + data
        self._payload.clear()
        rest = data.lstrip(_SPACE + (b"," if self._in_list else b""))
        if not rest or (dialect.opening.startswith(rest) and not self._in_list):
            self._payload += rest
            return None
        first = rest[:1]
        if first == b"{":
            self._span = JsonSpan()
            return self._until_value_ends(rest)
        if first == b"[" and not self._in_list and not rest.startswith((MISTRAL_ARGUMENTS[:2], dialect.opening)):
            self._in_list = True
            return rest[1:]
        if dialect is MISTRAL and not self._in_list and not rest.startswith(dialect.opening):
            return self._name_then_value(rest)
        if rest.startswith(dialect.opening):
            self.unclosed_calls += 1
            self.last_tag = self._start
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
        return self._until_value_ends(data[brace:])

    def _until_value_ends(self, data: bytes) -> bytes | None:
        assert self._span is not None
        end = self._span.feed(data, 0)
        if end < 0:
            self._keep(data)
            return None
        payload, self._span = bytes(self._payload) + data[:end], None
        self._look_back(data[: end - 1], payload[:-1])
        self._payload.clear()
        self._finish_value(payload)
        return data[end:]

    def _look_back(self, data: bytes, payload: bytes) -> None:
        """At the last byte before the call's end, where another cut of the text would have shown it open."""
        self._cycle.feed(data)
        if self._cycle.copies and (self._certain or self._is_certain(payload)):
            self.repeated_before_its_end = self._cycle.copies, self._start

    def _finish_value(self, payload: bytes) -> None:
        if self._name is not None:
            self._complete(payload)
            self._close()
        elif self._in_list:
            self._complete(payload)
            self._cycle = TailCycle()
        else:
            is_one = self._dialect is not BARE_JSON or is_call(payload)
            if is_one:
                self._complete(payload)
            self._close(bare_may_follow=is_one)

    def _keep(self, data: bytes) -> None:
        """Of an overlong call the first bytes stay, and the last ones so that its closing tag is seen."""
        if b"<" in data:
            self._mark, self._last_angle = self._token, len(self._payload) + len(data)
        self._cycle.feed(data)
        self._payload += data
        if len(self._payload) > PAYLOAD_LIMIT + 1024:
            dropped = len(self._payload) - _LONGEST_TAG - PAYLOAD_LIMIT
            del self._payload[PAYLOAD_LIMIT : PAYLOAD_LIMIT + dropped]
            self._last_angle -= dropped

    def _complete(self, payload: bytes) -> None:
        if len(payload) > PAYLOAD_LIMIT:
            found = [call_from_part(payload[:PAYLOAD_LIMIT], self._start, self._token)]
        elif self._name is not None:
            found = [named_call(self._name, payload, self._start, self._token)]
        else:
            found = calls_from_payload(payload, self._start, self._token)
        self.calls += len(found)
        self.unclosed_calls = 0
        self._completed += found

    def _is_certain(self, payload: bytes | bytearray) -> bool:
        """An answer that merely begins like a bare call is not one until arguments appear, and one that tells of a
        tag has no call behind it."""
        if self._dialect is BARE_JSON:
            head = bytes(payload[:1024])
            return b'"parameters"' in head or b'"arguments"' in head
        return self._span is not None or (self._decided and CALL_HEAD.match(payload[:512]) is not None)
