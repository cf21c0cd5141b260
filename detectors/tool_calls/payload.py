"""From the text between a call's tags to names and arguments, whatever the family's way to write them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parsed:
    name: str
    arguments: Any
    typed: bool = True
    """False where the family writes every value as text, so that the number 3 and the text "3" look alike."""


LONGEST_PYTHON = 16_384
"""Bytes; the parser for Python's own syntax is not made for more."""
_DECODER = json.JSONDecoder()
_SKIPPED = " \t\r\n,;"
_NAME_KEYS = ("name", "tool_name", "tool", "function_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "tool_input")


def parse_calls(text: str) -> list[Parsed] | None:
    """Every call of the payload in order; None where it is no well-formed call of any family."""
    for shape, read in _SHAPES:
        if match := shape.match(text):
            try:
                return read(text, match) or None
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                return None
    return None


def arguments_of(value: Any) -> Any:
    """OpenAI's own form is JSON inside a string."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def call_of(value: Any) -> Parsed | None:
    """From {"name": …, "arguments" | "parameters": …}, or the same under "function"."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        return None
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), None)
    if name is None:
        return None
    return Parsed(name, arguments_of(next((value[key] for key in _ARGUMENT_KEYS if key in value), None)))


def has_arguments(value: Any) -> bool:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    return isinstance(value, dict) and any(value.get(key) is not None for key in _ARGUMENT_KEYS)


def _json(text: str, match: re.Match[str]) -> list[Parsed] | None:
    calls: list[Parsed] = []
    for value in _json_values(text[match.end() :]):
        for item in value if isinstance(value, list) else [value]:
            call = call_of(item) or _single_key(item)
            if call is None:
                return None
            calls.append(call)
    return calls


def _json_values(text: str) -> Iterator[Any]:
    text = text.strip(_SKIPPED)
    at = 0
    while at < len(text):
        value, at = _DECODER.raw_decode(text, at)
        yield value
        while at < len(text) and text[at] in _SKIPPED:
            at += 1


def _single_key(value: Any) -> Parsed | None:
    """Apertus: {NAME: {…}}."""
    if isinstance(value, dict) and len(value) == 1:
        name, arguments = next(iter(value.items()))
        return Parsed(name, arguments) if isinstance(arguments, dict) else None
    return None


def _python(text: str, match: re.Match[str]) -> list[Parsed] | None:
    if len(text) > LONGEST_PYTHON:
        return None
    body = ast.parse(text.strip()).body
    found: list[Parsed] = []
    for statement in body:
        value = statement.value if isinstance(statement, ast.Expr) else None
        for node in value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]:
            if not isinstance(node, ast.Call):
                return None
            found.append(Parsed(ast.unparse(node.func), _python_arguments(node)))
    return found


def _python_arguments(node: ast.Call) -> dict[str, Any]:
    named = {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in node.keywords}
    return {str(place): ast.literal_eval(value) for place, value in enumerate(node.args)} | named


_FUNCTION = re.compile(r"<function=([^>\s]{1,256})>")
_FUNCTION_PARAMETER = re.compile(r"<parameter=([^>]{1,256})>")
_INVOKE = re.compile(r"<?[^\s<>/]{0,32}invoke\s{1,8}name=\"([^\"]{0,256})\"\s{0,8}>")
_INVOKE_PARAMETER = re.compile(r"<[^\s<>/]{0,32}parameter\s{1,8}name=\"([^\"]{0,256})\"[^>]{0,64}>")
_PARAMETER_END = re.compile(r"</[^\s<>/]{0,32}parameter>|</function>")
_ARGUMENT_KEY = re.compile(r"<arg_key>")
_ARGUMENT_PAIR = re.compile(r"\s*([^<]{1,256})</arg_key>\s*<arg_value>")


def _parts(text: str, opening: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Each opening's group and what stands behind it, up to the next opening."""
    found = list(opening.finditer(text))
    ends = [following.start() for following in found[1:]] + [len(text)]
    for match, end in zip(found, ends, strict=False):
        yield match.group(1), text[match.end() : end]


def _parameters(body: str, opening: re.Pattern[str]) -> dict[str, str]:
    found = {}
    for key, value in _parts(body, opening):
        end = _PARAMETER_END.search(value)
        found[key.strip()] = (value[: end.start()] if end else value).strip("\n")
    return found


def _functions(text: str, match: re.Match[str]) -> list[Parsed]:
    found = _parts(text, _FUNCTION)
    return [Parsed(name, _parameters(body, _FUNCTION_PARAMETER), typed=False) for name, body in found]


def _invokes(text: str, match: re.Match[str]) -> list[Parsed]:
    return [Parsed(name, _parameters(body, _INVOKE_PARAMETER), typed=False) for name, body in _parts(text, _INVOKE)]


def _pairs(text: str, match: re.Match[str]) -> list[Parsed] | None:
    head, *parts = _ARGUMENT_KEY.split(text[match.end() :])
    arguments = {}
    for part in parts:
        pair = _ARGUMENT_PAIR.match(part)
        value, end, rest = part[pair.end() :].partition("</arg_value>") if pair else ("", "", "")
        if pair is None or not end or rest.strip():
            return None
        arguments[pair.group(1).strip()] = value.strip()
    return None if head.strip() else [Parsed(match.group(1), arguments, typed=False)]


def _named_json(text: str, match: re.Match[str]) -> list[Parsed]:
    """A name, a separator, JSON that may stand in a fence."""
    body = text[match.end() :].strip()
    body = body.removeprefix("```json").removesuffix("```").strip()
    return [Parsed(_bare_name(match.group(1)), json.loads(body) if body else {})]


def _bare_name(name: str) -> str:
    """Kimi and harmony: functions.NAME, Kimi with :INDEX behind it."""
    return re.sub(r":\d+\Z", "", name.strip()).removeprefix("functions.")


_QUOTE = re.compile(r'<\|"\|>|<escape>')


def _gemma(text: str, match: re.Match[str]) -> list[Parsed]:
    """call:NAME{key:value}; strings between marks of their own, so braces in them are text."""
    found = []
    for part in re.split(r"(?:\A|(?<=\}))\s*call:", text.strip())[1:]:
        name, _, body = part.partition("{")
        if not body.rstrip().endswith("}") or len(_QUOTE.findall(body)) % 2:
            raise ValueError("the call's braces or quotes do not close")
        found.append(Parsed(name.strip(), _gemma_arguments(body.rstrip()[:-1]), typed=False))
    return found


def _gemma_arguments(body: str) -> dict[str, str]:
    """Of the outermost level; what is nested stays text, white space folded."""
    arguments: dict[str, str] = {}
    depth, start, quoted = 0, 0, False
    for mark in re.finditer(r'<\|"\|>|<escape>|[{}\[\],]', body):
        if mark.group()[0] == "<":
            quoted = not quoted
        elif not quoted and mark.group() == "," and depth == 0:
            _put(arguments, body[start : mark.start()])
            start = mark.end()
        elif not quoted and mark.group() != ",":
            depth += 1 if mark.group() in "{[" else -1
    _put(arguments, body[start:])
    return arguments


def _put(arguments: dict[str, str], pair: str) -> None:
    key, colon, value = pair.partition(":")
    if colon:
        arguments[key.strip()] = _QUOTE.sub("", value.strip())


_PLUGIN = r"\s*(?:<\|(?:plugin|interpreter)\|>)?\s*"
_SHAPES: tuple[tuple[re.Pattern[str], Callable[[str, re.Match[str]], list[Parsed] | None]], ...] = (
    (re.compile(_PLUGIN + r"(?=\{|\[\s*[{\]])"), _json),
    (re.compile(r"\s*<function="), _functions),
    (re.compile(r"(?:function<｜tool_sep｜>)?\s*<?[^\s<>/]{0,32}invoke\s+name="), _invokes),
    (re.compile(r'\s*name="'), lambda text, match: _invokes("<invoke " + text.lstrip(), match)),
    (re.compile(r"\s*call:"), _gemma),
    (re.compile(r"\s*([\w.\-]{1,256}(?::\d+)?)\s*<\|tool_call_argument_begin\|>"), _named_json),
    (re.compile(r"\s*function\s*<｜tool▁sep｜>\s*([^\s<]{1,256})"), _named_json),
    (re.compile(r"\s*([^\s<]{1,256})\s*<｜tool▁sep｜>"), _named_json),
    (
        re.compile(r"[^<]{0,256}?\bto=([^\s<]{1,256})[^<]{0,256}(?:<\|constrain\|>[^<]{0,64})?<\|message\|>"),
        _named_json,
    ),
    (
        re.compile(r"([\w.\-]{1,256})\s*(?:<\|channel\|>[^<]{0,256})?(?:<\|constrain\|>[^<]{0,64})?<\|message\|>"),
        _named_json,
    ),
    (re.compile(r"\s*([\w.\-]{1,256})\s*\[ARGS\]"), _named_json),
    (re.compile(r"\s*\[?\s*[A-Za-z_][\w.]*\s*\("), _python),
    (re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*(?:<tool_sep>)?(?=\s*<arg_key>|\s*\Z)"), _pairs),
)
