"""A stop that was not honoured, where there is only text: the request's stop strings, and markers of a turn's end.

Limits: servers drop special tokens from the text, so that an end token passed over is seldom seen here. A marker counts
only where a new turn begins right behind it, and only where the prompt does not speak of such markers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from checkengine.guards.finding import Severity
from checkengine.guards.text import TextFinding, TextStart

KIND = "stop.ignored"
MARKERS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<end_of_turn>", "<|end|>")
_NEXT_TURN = re.compile(
    "(?:" + "|".join(map(re.escape, MARKERS)) + r")\s{0,8}"
    r"(?:<\|im_start\|>|<\|start_header_id\|>|<s>|\[INST\]|<start_of_turn>|<\|(?:user|assistant|system|start)\|>)"
)
_LONGEST_TURN = 64
"""Characters that a marker, white space and the next turn's beginning take together at most."""
NOTHING: tuple[TextFinding, ...] = ()


class StopTextGuard:
    """Each of the two told once: a stop string is exact, a marker is a sign."""

    name: str = "ignored_stop"
    version: int = 1

    def __init__(self, start: TextStart, settings: object = None) -> None:
        self._id = start.id
        self._stops = start.stops
        self._kept = start.stop_is_kept
        self._stop_told = not start.stops
        self._turn_told = any(marker in start.prompt for marker in MARKERS)
        self._overlap = max([_LONGEST_TURN, *map(len, start.stops)])
        self._tail = ""
        self._read = 0
        """Characters before the tail."""

    def push(self, piece: str) -> Iterable[TextFinding]:
        if self._stop_told and (self._turn_told or ("<" not in piece and "<" not in self._tail)):
            self._keep(self._tail + piece if self._tail else piece)
            return NOTHING
        text = self._tail + piece
        found = [*self._stop(text), *self._turn(text)]
        self._keep(text)
        return found

    def end(self) -> Iterable[TextFinding]:
        return NOTHING

    def _stop(self, text: str) -> Iterable[TextFinding]:
        if self._stop_told:
            return
        places = [(place, stop) for stop in self._stops if (place := self._place(text, stop)) >= 0]
        if places:
            self._stop_told = True
            place, _ = min(places)
            yield self._finding(Severity.ERROR, place, {"reason": "stop_string"})

    def _place(self, text: str, stop: str) -> int:
        place = text.find(stop)
        # The text may end in it where the request says so; whether it goes on is known with the next piece.
        return -1 if self._kept and place + len(stop) == len(text) else place

    def _turn(self, text: str) -> Iterable[TextFinding]:
        if not self._turn_told and (found := _NEXT_TURN.search(text)):
            self._turn_told = True
            yield self._finding(Severity.WARNING, found.start(), {"reason": "next_turn"})

    def _finding(self, severity: Severity, place: int, evidence: dict[str, float | int | bool | str]) -> TextFinding:
        return TextFinding(KIND, self._id, severity, self.name, {"char": self._read + place}, self.version, evidence)

    def _keep(self, text: str) -> None:
        dropped = max(0, len(text) - self._overlap)
        self._read += dropped
        self._tail = text[dropped:]
