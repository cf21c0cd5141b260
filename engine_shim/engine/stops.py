"""Text of a growing sequence: whole characters only, and nothing that may belong to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT = "�"
_CONTEXT = 6
"""Tokens decoded again in front of new ones: what a tokenizer does at the start of a text depends on what is before."""
_WINDOW = 24
"""Tokens decoded at most, unless a character is broken."""
_PATIENCE = 16
"""A broken character of more tokens than this is no character; it is let out as it is."""


class TextStream:
    """Tokens in, text out that will not change any more."""

    def __init__(self, decode: Decode, stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(string for string in stop if string)
        self._tokens: list[int] = []
        self._pending = 0
        """Tokens at the end whose text is not out yet."""
        self._before = ""
        """Text of the tokens in front of those."""
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Text that became certain with this token; `stopped` is True once a stop string has appeared."""
        self._tokens.append(token)
        self._pending += 1
        text = self._decode(self._tokens)
        if text.endswith(_REPLACEMENT) and self._pending < _PATIENCE:
            return ""
        new, self._before, self._pending = text[len(self._before) :], text, 0
        if len(self._tokens) > _WINDOW:
            self._tokens = self._tokens[-_CONTEXT:]
            self._before = self._decode(self._tokens)
        return self._release(new)

    def finish(self) -> str:
        """What is left at the end, a broken character included."""
        if self.stopped:
            return ""
        rest = self._held + self._decode(self._tokens)[len(self._before) :] if self._pending else self._held
        self._held, self._pending = "", 0
        return rest

    def _release(self, new: str) -> str:
        text = self._held + new
        found = [index for index in (text.find(string) for string in self._stop) if index >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, string) for string in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that begins `string`."""
    return next((size for size in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:size])), 0)
