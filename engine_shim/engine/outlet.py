"""What of one request's output has been handed out, and what is still held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from checkengine.engine_shim.engine.stops import TextStream


class Outlet:
    """Tokens go in when they are sampled, with the text that became certain with them, and come out `hold_back` tokens
    later or at the end."""

    def __init__(self, new_stream: Callable[[], TextStream], hold_back: int = 0) -> None:
        self._new_stream = new_stream
        self._hold_back = hold_back
        self._stream = new_stream()
        self._held: list[tuple[int, str]] = []
        self.handed = 0
        """Output tokens handed out so far."""

    @property
    def stopped(self) -> bool:
        """A stop string has appeared."""
        return self._stream.stopped

    def push(self, token: int, *, silent: bool = False) -> None:
        """A sampled token; a silent one (a stop token) has no text."""
        self._held.append((token, "" if silent else self._stream.push(token)))

    def rewind(self, output: Sequence[int]) -> None:
        """Only these output tokens count from here on; those handed out already stay handed out."""
        self._stream = self._new_stream()
        texts = [(token, self._stream.push(token)) for token in output]
        self._held = texts[self.handed :]

    def take(self) -> tuple[tuple[int, ...], str]:
        """Tokens and text that may go out now."""
        return self._hand_out(max(0, len(self._held) - self._hold_back))

    def finish(self) -> tuple[tuple[int, ...], str]:
        """All that is left."""
        tokens, text = self._hand_out(len(self._held))
        return tokens, text + self._stream.finish()

    def _hand_out(self, count: int) -> tuple[tuple[int, ...], str]:
        out, self._held = self._held[:count], self._held[count:]
        self.handed += count
        return tuple(token for token, _ in out), "".join(text for _, text in out)
