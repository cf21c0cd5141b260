"""Conversations whose tool calls come back turn after turn without progress, or do not fit the request's tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from checkengine.detectors.tool_calls import Round, Said, ToolUse, TurnLoops, TurnReading, UserTurn, turns_of
from checkengine.detectors.tool_calls.validity import ToolSchemas
from checkengine.guards.finding import Severity
from checkengine.guards.settings import ToolCallSettings
from checkengine.guards.text import Conversation, TextFinding
from checkengine.guards.tool_calls import MALFORMED

LOOP = "tool_call.loop"


class ToolLoopGuard:
    """Holds nothing between conversations."""

    name: str = "tool_calls"
    version: int = 1

    def __init__(self, settings: ToolCallSettings | None = None) -> None:
        self._loops = (settings or ToolCallSettings()).loops

    def read(self, conversation: Conversation) -> Iterable[TextFinding]:
        turns = turns_of(conversation.messages)
        found = [*self._invalid(conversation, turns)]
        if self._loops:
            found += [self._loop(conversation.id, reading) for reading in TurnLoops().read(turns)]
        return sorted(found, key=lambda finding: finding.at["message"])

    def _loop(self, identifier: str, reading: TurnReading) -> TextFinding:
        severity = Severity.ERROR if reading.certain else Severity.WARNING
        evidence = {
            "rule": reading.rule,
            "count": reading.count,
            "period": reading.period,
            "first_message": reading.first,
        }
        at = {"message": reading.message}
        return TextFinding(LOOP, identifier, severity, self.name, at, self.version, evidence)

    def _invalid(self, conversation: Conversation, turns: Sequence[Round | UserTurn | Said]) -> Iterator[TextFinding]:
        schemas = ToolSchemas(conversation.tools)
        for turn in turns:
            for place, use in enumerate(turn.uses if isinstance(turn, Round) else ()):
                if fault := _fault(use, schemas):
                    evidence: dict[str, float | int | bool | str] = {"reason": fault, "call": place}
                    at = {"message": turn.message}
                    yield TextFinding(
                        MALFORMED, conversation.id, Severity.WARNING, self.name, at, self.version, evidence
                    )


def _fault(use: ToolUse, schemas: ToolSchemas) -> str | None:
    if use.form == "broken":
        return "invalid_json"
    return schemas.fault(use.name, use.arguments, typed=use.form != "text")
