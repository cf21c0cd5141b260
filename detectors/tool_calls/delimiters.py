"""How models mark tool calls in their text; single-token delimiters are pieces like any other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """With a closing tag the call ends there; without one it ends with its JSON value."""

    name: str
    opening: bytes
    closing: bytes | None


HERMES = Dialect("hermes", b"<tool_call>", b"</tool_call>")
"""Hermes, Qwen 2.5 and 3, SmolLM2, Granite 4; by the tags also GLM 4 and Qwen3-Coder, whose payload is no JSON."""
LLAMA3 = Dialect("llama3", b"<|python_tag|>", None)
"""Llama 3: JSON {name, parameters}, several separated by a semicolon. The tag may be missing: see BARE_JSON."""
MISTRAL = Dialect("mistral", b"[TOOL_CALLS]", None)
"""A JSON list of {name, arguments} (tokenizers before v11) or NAME[ARGS]{…}."""

BARE_JSON = Dialect("bare_json", b"", None)
"""Llama 3 without its tag: JSON {name, parameters} at the start of the generation or after another call."""

DIALECTS = (HERMES, LLAMA3, MISTRAL)
MISTRAL_ARGUMENTS = b"[ARGS]"
