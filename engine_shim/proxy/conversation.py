"""The conversation that a request brings along, read before it is sent: tool calls that come back turn after turn."""

from __future__ import annotations

from collections.abc import Mapping

from checkengine.engine_shim.proxy.channel import Told
from checkengine.engine_shim.proxy.guarding import Bench
from checkengine.engine_shim.proxy.requests import RequestFacts
from checkengine.engine_shim.proxy.sessions import Sessions
from checkengine.guards.text import Conversation

MOST_MESSAGES = 400
"""Of the end of a conversation: longer ones are read from there, so that a turn does not cost more and more."""
MOST_CALLS = 2000
"""In these messages."""


def told_of_conversation(key: str, identity: str, facts: RequestFacts, bench: Bench, sessions: Sessions) -> list[Told]:
    """What was not told of this conversation before. Each turn brings all earlier ones again."""
    messages = facts.turns[-MOST_MESSAGES:]
    calls = [_calls(message) for message in messages]
    if not any(calls) or sum(calls) > MOST_CALLS:
        return []
    conversation = Conversation(identity, messages, facts.tools)
    told: list[Told] = []
    for seat, guard in bench.conversations():
        found = bench.run(seat, lambda asked: asked.read(conversation), guard, len(messages))
        for finding in found or ():
            reason = finding.evidence.get("rule", finding.evidence.get("reason", ""))
            since_end = len(messages) - int(finding.at.get("message", 0))
            what = (finding.kind, reason, finding.severity)
            # Without a key only the newest turn is news.
            if sessions.is_news(key, what) if key else since_end <= 2:
                told.append((seat.name, finding))
    return told


def _calls(message: Mapping[str, object]) -> int:
    """Or results of calls."""
    calls = message.get("tool_calls")
    return len(calls) if isinstance(calls, list) else int(bool(calls) or message.get("role") == "tool")
