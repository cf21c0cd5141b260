"""Writes a conversation of an agent, in the message dialects that servers see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from checkengine.benchmarks.detectors.tool_call_worlds import CHANGES, NOUNS, READS, Chance, Tool

Call = tuple[str, dict[str, Any], str | None]
"""Tool name, arguments, result; None where it was never recorded."""
DIALECTS = ("openai", "openai", "openai", "object", "legacy", "blocks")
OPENERS = ("", "", "", "Let me look.", "I will try that now.", "Checking.", "Next step.")


class Script:
    """Messages so far; `chance` decides on the dialect, the place of work and all noise."""

    def __init__(self, seed: int) -> None:
        self.chance = Chance(seed)
        self.dialect = self.chance.choice(DIALECTS)
        self.tools = self.chance.choice(READS)
        self.messages: list[dict[str, Any]] = []
        if self.chance.random() < 0.7:
            self.messages.append({"role": "system", "content": "You are an agent. " + self.chance.sentence()})
        self.user(f"Please {self.chance.sentence()}")
        self.alarm_by: int | None = None
        """Index of the message with the call by which a loop should be found."""

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def say(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def call(self, name: str, arguments: dict[str, Any], result: str | None) -> None:
        self.calls([(name, arguments, result)])

    def use(self, tool: Tool) -> None:
        self.call(tool.name, tool.arguments(self.chance), tool.result(self.chance))

    def fresh(self, count: int) -> None:
        """Calls that find something new each time, with a change now and then."""
        for _ in range(count):
            self.use(self.chance.choice(CHANGES) if self.chance.random() < 0.2 else self.chance.choice(self.tools))

    def calls(self, calls: Sequence[Call]) -> None:
        """One assistant message and its results."""
        identifiers = [f"call_{self.chance.hexadecimal(12)}" for _ in calls]
        text = self.chance.choice(OPENERS)
        if self.dialect == "blocks":
            self._blocks(calls, identifiers, text)
        elif self.dialect == "legacy" and len(calls) == 1:
            self._legacy(calls[0], text)
        else:
            self._openai(calls, identifiers, text)

    def due(self) -> None:
        """A loop should be found by the last call so far."""
        self.alarm_by = max(index for index, message in enumerate(self.messages) if message["role"] == "assistant")

    def _openai(self, calls: Sequence[Call], identifiers: Sequence[str], text: str) -> None:
        made = []
        for (name, arguments, _), identifier in zip(calls, identifiers, strict=True):
            shown: Any = arguments if self.dialect == "object" else self._shown(arguments)
            made.append({"id": identifier, "type": "function", "function": {"name": name, "arguments": shown}})
        self.messages.append({"role": "assistant", "content": text or None, "tool_calls": made})
        for (name, _, result), identifier in zip(calls, identifiers, strict=True):
            if result is not None:
                self.messages.append({"role": "tool", "tool_call_id": identifier, "name": name, "content": result})

    def _shown(self, arguments: dict[str, Any]) -> str:
        """Key order and white space vary from call to call, as they do with models."""
        items = list(arguments.items())
        if self.chance.random() < 0.3:
            self.chance.shuffle(items)
        return json.dumps(dict(items), indent=self.chance.choice((None, None, None, 2)))

    def _legacy(self, call: Call, text: str) -> None:
        name, arguments, result = call
        made = {"name": name, "arguments": self._shown(arguments)}
        self.messages.append({"role": "assistant", "content": text or None, "function_call": made})
        if result is not None:
            self.messages.append({"role": "function", "name": name, "content": result})

    def _blocks(self, calls: Sequence[Call], identifiers: Sequence[str], text: str) -> None:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        results = []
        for (name, arguments, result), identifier in zip(calls, identifiers, strict=True):
            blocks.append({"type": "tool_use", "id": identifier, "name": name, "input": arguments})
            if result is not None:
                content: Any = result if self.chance.random() < 0.5 else [{"type": "text", "text": result}]
                results.append({"type": "tool_result", "tool_use_id": identifier, "content": content})
        self.messages.append({"role": "assistant", "content": blocks})
        if results:
            self.messages.append({"role": "user", "content": results})


def looping_call(script: Script) -> tuple[str, dict[str, Any], str]:
    """A look at the world that finds the same each time: content, nothing, or an error."""
    chance = script.chance
    tool = chance.choice([tool for tool in script.tools if tool.name != "calculate"])
    result = tool.result(chance)
    if chance.random() < 0.25:
        result = chance.choice(
            (
                "No results found.",
                "[]",
                f"Error: {chance.choice(NOUNS)} not found",
                '{"results": [], "total": 0}',
                "Traceback (most recent call last):\n  File \"a.py\", line 3\nKeyError: 'x'",
                '{"error": "invalid argument: limit"}',
            )
        )
    return tool.name, tool.arguments(chance), result
