"""How models mark tool calls in their text, by family (from the chat templates and the parsers that engines ship)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_NAME = rb"[A-Za-z_][\w.\-]{0,127}"
CALL_HEAD = re.compile(
    rb"\s*(?:[\[{]|%(name)s\s*\(|<[^\s<>/]{0,32}(?:invoke|function)\b|call:|"
    rb"%(name)s(?::\d+)?\s*(?:<|\n|\[ARGS\]|\{)|<\|(?:plugin|interpreter)\|>)" % {b"name": _NAME}
)
"""How a payload begins, where it is one: without it an opening tag may be a mere mention of the tag."""
_CALLEE = re.compile(rb"\[?\s*%(name)s\s*" % {b"name": _NAME})
_HEADER_LIMIT = 512
"""Bytes in which an opening tag that other text uses too must have proved to be one."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """With a closing tag the call ends there; without one it ends with its JSON value.

    Every tag begins with `<` or `[` and holds neither later on: what may become a tag is then found by one look-up.
    """

    name: str
    opening: bytes
    closing: bytes | None
    is_call: Callable[[bytes], bool | None] | None = None
    """Whether what follows the opening tag is a call, for tags that other text uses too; None: more is needed."""
    sections: tuple[tuple[bytes, bytes], ...] = ()
    """Tags around a group of calls."""


def _json_follows(data: bytes) -> bool | None:
    head = data[:_HEADER_LIMIT].lstrip()
    if len(head) < 2 or not (rest := head[1:].lstrip()):
        return None if len(data) < _HEADER_LIMIT and (not head or head[:1] in b"[{") else False
    return (head[:1] == b"[" and rest[:1] in b"{]") or (head[:1] == b"{" and rest[:1] == b'"')


def _python_or_invoke_follows(data: bytes) -> bool | None:
    head = data[:_HEADER_LIMIT].lstrip()
    if head[:1] == b"<":
        tag, mark, _ = head[:64].partition(b">")
        return b"invoke" in tag if mark or len(head) >= 64 else None
    callee = _CALLEE.match(head)
    rest = head[callee.end() :] if callee else head.lstrip(b"[ \t\r\n")
    if rest:
        return callee is not None and rest[:1] == b"("
    return None if len(data) < _HEADER_LIMIT else False


def _recipient_follows(data: bytes) -> bool | None:
    header, mark, _ = data[:_HEADER_LIMIT].partition(b"<|message|>")
    if mark:
        return b"to=" in header
    return None if len(data) < _HEADER_LIMIT else False


HERMES = Dialect("hermes", b"<tool_call>", b"</tool_call>")
"""JSON: Hermes, Qwen 2.5 and 3, SmolLM2, Granite 4, Ernie 4.5. <function=NAME>: Qwen3-Coder, Step 3.5.
NAME with <arg_key>: GLM 4, Hunyuan 3."""
SEED = Dialect("seed", b"<seed:tool_call>", b"</seed:tool_call>")
LLAMA3 = Dialect("llama3", b"<|python_tag|>", None)
"""JSON {name, parameters}, several separated by a semicolon. The tag may be missing: see BARE_JSON."""
LLAMA4 = Dialect("llama4", b"<|python_start|>", b"<|python_end|>")
"""A list of Python calls."""
OLMO = Dialect("olmo", b"<function_calls>", b"</function_calls>", _python_or_invoke_follows)
"""Python calls, one a line; also <invoke name=…>."""
MISTRAL = Dialect("mistral", b"[TOOL_CALLS]", None)
"""A JSON list of {name, arguments} (tokenizers before v11) or NAME[ARGS]{…}."""
DEEPSEEK = Dialect(
    "deepseek",
    "<｜tool▁call▁begin｜>".encode(),
    "<｜tool▁call▁end｜>".encode(),
    sections=(("<｜tool▁calls▁begin｜>".encode(), "<｜tool▁calls▁end｜>".encode()),),
)
"""V3 and R1: function<｜tool▁sep｜>NAME and fenced JSON; V3.1: NAME<｜tool▁sep｜>JSON."""
DEEPSEEK_DSML = Dialect(
    "deepseek_dsml",
    "<｜DSML｜invoke".encode(),
    "</｜DSML｜invoke>".encode(),
    sections=tuple(
        (f"<｜DSML｜{name}>".encode(), f"</｜DSML｜{name}>".encode()) for name in ("function_calls", "tool_calls")
    ),
)
KIMI = Dialect(
    "kimi",
    b"<|tool_call_begin|>",
    b"<|tool_call_end|>",
    sections=((b"<|tool_calls_section_begin|>", b"<|tool_calls_section_end|>"),),
)
HARMONY = Dialect("harmony", b"<|channel|>", b"<|call|>", _recipient_follows)
"""gpt-oss: a message of the commentary channel `to=functions.NAME`; other messages of its channels are no calls."""
HARMONY_START = Dialect("harmony_start", b"<|start|>assistant to=", b"<|call|>")
"""The recipient before the channel."""
MINIMAX = Dialect("minimax", b"<minimax:tool_call>", b"</minimax:tool_call>")
"""M2: <invoke name=…> with <parameter name=…>."""
LONGCAT = Dialect("longcat", b"<longcat_tool_call>", b"</longcat_tool_call>")
JAMBA = Dialect("jamba", b"<tool_calls>", b"</tool_calls>", _json_follows)
"""A JSON list (Jamba, Hunyuan) or JSON a line (MiniMax M1); around <tool_call> it is only a section."""
FUNCTION_GEMMA = Dialect("function_gemma", b"<start_function_call>", b"<end_function_call>")
GEMMA4 = Dialect("gemma4", b"<|tool_call>", b"<tool_call|>")
"""Both: call:NAME{key:value}."""
GRANITE3 = Dialect("granite3", b"<|tool_call|>", None)
GRANITE20B = Dialect("granite20b", b"<function_call>", None)
INTERNLM = Dialect("internlm", b"<|action_start|>", b"<|action_end|>")
LFM2 = Dialect("lfm2", b"<|tool_call_start|>", b"<|tool_call_end|>")
STEP3 = Dialect(
    "step3",
    "<｜tool_call_begin｜>".encode(),
    "<｜tool_call_end｜>".encode(),
    sections=(("<｜tool_calls_begin｜>".encode(), "<｜tool_calls_end｜>".encode()),),
)
APERTUS = Dialect("apertus", b"<|tools_prefix|>", b"<|tools_suffix|>")
"""A JSON list of {NAME: arguments}."""
COMMAND = Dialect("command", b"<|START_ACTION|>", b"<|END_ACTION|>")
NEMOTRON = Dialect("nemotron", b"<TOOLCALL>", b"</TOOLCALL>")

BARE_JSON = Dialect("bare_json", b"", None)
"""Llama 3 without its tag: JSON {name, parameters} at the start of the generation or after another call."""

DIALECTS = (
    HERMES,
    SEED,
    LLAMA3,
    LLAMA4,
    OLMO,
    MISTRAL,
    DEEPSEEK,
    DEEPSEEK_DSML,
    KIMI,
    HARMONY,
    HARMONY_START,
    MINIMAX,
    LONGCAT,
    JAMBA,
    FUNCTION_GEMMA,
    GEMMA4,
    GRANITE3,
    GRANITE20B,
    INTERNLM,
    LFM2,
    STEP3,
    APERTUS,
    COMMAND,
    NEMOTRON,
)
MISTRAL_ARGUMENTS = b"[ARGS]"
