"""Tool calls in the text of one completion: such that run away, and such that do not fit the request's tools."""

from __future__ import annotations

import re
from collections.abc import Iterable

from checkengine.detectors.tool_calls import CallLimits, CallLoops, CallReading, ToolCall, tags_of
from checkengine.detectors.tool_calls.validity import ToolSchemas
from checkengine.guards.finding import Severity
from checkengine.guards.settings import ToolCallSettings
from checkengine.guards.text import TextFinding, TextStart
from checkengine.guards.tool_calls import COUNTED, KINDS, MALFORMED, severity_of

NO_FINDINGS: tuple[TextFinding, ...] = ()
CHARACTERS_A_TOKEN = 4
_TAGS = tags_of()
_TAG = re.compile("|".join(re.escape(tag.decode()) for tag in sorted(_TAGS.all, key=len, reverse=True)))
_BEGINNINGS = frozenset(tag.decode()[:end] for tag in _TAGS.all for end in range(1, len(tag.decode())))


class TextToolCallGuard:
    """Made for one completion. Positions are characters, and a piece is cut where a tag begins, so that they are
    the same however the text came."""

    name: str = "tool_calls"
    version: int = 1

    def __init__(self, start: TextStart, settings: ToolCallSettings | None = None) -> None:
        settings = settings or ToolCallSettings()
        unclosed = settings.unclosed_tokens * CHARACTERS_A_TOKEN
        self._id = start.id
        self._schemas = ToolSchemas(start.tools)
        self._loops = CallLoops(CallLimits(settings.identical_calls, unclosed, settings.stray_closings))
        self._at = 0
        """Characters so far."""
        self._idle = False
        """Pieces in which no tag stands or begins change nothing."""
        self._told: set[tuple[str, str]] = set()

    def push(self, piece: str) -> Iterable[TextFinding]:
        if self._idle and (("<" not in piece and "[" not in piece) or not _may_matter(piece)):
            self._at += len(piece)
            return NO_FINDINGS
        found: list[TextFinding] = []
        for part in _parts(piece):
            told = self._loops.push(part.encode("utf-8", errors="surrogatepass"), self._at)
            if (endless := self._loops.ended_endless()) is not None:
                self._loop(found, endless)
            self._at += len(part)
            for call in self._loops.completed:
                self._check(found, call)
            if told is not None:
                self._loop(found, told)
        self._idle = self._loops.is_idle
        return found

    def end(self) -> Iterable[TextFinding]:
        """An open call at the end was cut off, or never closed."""
        since = self._loops.recogniser.open_since
        found: list[TextFinding] = []
        if since is not None:
            self._tell(found, MALFORMED, "unclosed", Severity.WARNING, since, {"reason": "unclosed"})
        return found

    def _check(self, found: list[TextFinding], call: ToolCall) -> None:
        if not call.complete:
            return
        if not call.well_formed:
            severity = Severity.WARNING if self._schemas or call.looks_like_one else Severity.INFO
            self._tell(found, MALFORMED, "invalid_json", severity, call.start, {"reason": "invalid_json"})
        elif fault := self._schemas.fault(call.name or "", call.arguments, typed=call.typed):
            self._tell(found, MALFORMED, fault, Severity.WARNING, call.start, {"reason": fault})

    def _loop(self, found: list[TextFinding], told: CallReading) -> None:
        evidence: dict[str, float | int | bool | str] = {"reason": told.kind}
        if told.kind != "unclosed":
            evidence[COUNTED[told.kind]] = told.count
        self._tell(found, KINDS[told.kind], told.kind, severity_of(told), told.start, evidence)

    def _tell(
        self,
        found: list[TextFinding],
        kind: str,
        reason: str,
        severity: Severity,
        char: int,
        evidence: dict[str, float | int | bool | str],
    ) -> None:
        """Each reason once."""
        if (kind, reason) not in self._told:
            self._told.add((kind, reason))
            found.append(TextFinding(kind, self._id, severity, self.name, {"char": char}, self.version, evidence))


def _may_matter(piece: str) -> bool:
    return piece[max(piece.rfind("<"), piece.rfind("[")) :] in _BEGINNINGS or _TAG.search(piece) is not None


def _parts(piece: str) -> Iterable[str]:
    """Cut where a tag stands, and where one may have begun at the end."""
    cuts = [match.start() for match in _TAG.finditer(piece)]
    last = max(piece.rfind("<"), piece.rfind("["))
    if last >= 0 and piece[last:] in _BEGINNINGS:
        cuts.append(last)
    cuts += [brace] if (brace := piece.find("{")) >= 0 and not piece[:brace].strip(" \t\r\n;") else []
    before = 0
    for cut in sorted({*cuts, len(piece)}):
        if cut > before:
            yield piece[before:cut]
            before = cut
