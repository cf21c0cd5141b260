"""What changes from one call to the next without meaning anything: clocks, ids, durations, temporary paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MOST_TEXT = 8_000
"""Characters of a result in which volatile parts are looked for; the rest must be equal."""
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?"
_DAY = rf"(?:{_MONTH} +\d{{1,2}}|\d{{1,2}} +{_MONTH})"
_ZONE = r"(?: ?[AP]M)?(?: +[A-Z]{2,5})?"
_UNITS = r"(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|hours?|days?)"
_MASKS = re.compile(
    "|".join(
        (
            rf"\b\d{{4}}[-/]\d{{2}}[-/]\d{{2}}[T ]{{1,2}}{_CLOCK}(?: ?Z| ?UTC| ?GMT| ?[+-]\d{{2}}:?\d{{2}})?",
            rf"\b{_WEEKDAY},? +{_DAY}\b[ ,\d:]{{0,16}}{_ZONE}(?: +\d{{4}})?",
            rf"\b{_DAY},?(?: +\d{{4}},?)?(?: +at)? +{_CLOCK}{_ZONE}",
            r"\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?(?: ?[AP]M)?\b",
            r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b",
            r"\b0x[0-9a-fA-F]{6,16}\b",
            r"\b1[5-9]\d{8}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?\b",
            r"(?:/tmp|/var/tmp|/var/folders|/private/tmp)/[^\s\"'<>|]{1,256}",
            rf"\b\d+(?:\.\d+)? ?(?:ns|us|µs|ms)\b|\b\d+\.\d+ ?(?:s|secs?|seconds?)\b|\b\d+ ?{_UNITS} ago\b",
            rf"\b(?:took|elapsed|after|duration|latency|uptime|in)[:=\s]{{1,3}}\d+(?:\.\d+)? ?{_UNITS}\b",
            r"\b(?:req|request|msg|call|chatcmpl|run|evt|event|trace|span|sess|session|txn|op|corr|ref|tmp|log)"
            r"[_\-][A-Za-z0-9]{4,64}\b",
            r"\b(?:request|req|trace|span|session|correlation|transaction|event|message|log|query)[ _\-]?id"
            r"\W{1,5}[\w\-]{1,64}",
            r"\b(?:pid|PID|port)[ :=#]{1,3}\d{2,6}\b",
            r"\b(?=[A-Za-z_\-]{0,63}\d)(?=[\d_\-]{0,63}[A-Za-z])[A-Za-z0-9_\-]{20,64}\b",
            r"\b(?=[a-f]{0,39}\d)(?=\d{0,39}[a-f])[0-9a-f]{12,64}\b",
        )
    )
)
_MASK_KEY = re.compile(
    r'"(?:timestamp|ts|time|datetime|now|as_of|server_?time|fetched_?at|generated_?at|updated_?at|checked_?at|retrieved_?at|'
    r"last_?(?:checked|updated|seen|refreshed)|(?:request|trace|span|correlation|session)_?id|nonce|etag|seq(?:uence)?|"
    r"elapsed\w{0,16}|duration\w{0,16}|latency\w{0,16}|took\w{0,8}|uptime\w{0,8}|query_?time\w{0,8}|cache_?age|"
    r"expires_?(?:in|at)|"
    r'call_?count|attempt)" ?: ?(?:"[^"]{0,128}"|-?[\d.eE+]{1,32})',
    re.I,
)
_BARE_CLOCK = re.compile(r"\b\d{1,2}:\d{2}(?: ?[AP]M)?\b")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"[\w.+:\-]+")
_VOLATILE_ARGUMENT = re.compile(
    r"_?(?:(?:client_?)?(?:request|trace|span|correlation|idempotency|invocation|call|message)_?(?:id|key|token)|nonce|"
    r"time_?stamp|ts|now|client_?time|explanation|rationale|thought|reasoning|justification|toolSummary|tool_summary)",
    re.I,
)


def masked(text: str) -> str:
    """The text without clocks, durations, ids and temporary paths; a date alone and a small number stay."""
    if _DIGIT.search(text, 0, MOST_TEXT) is None:
        return text
    head = _MASK_KEY.sub('""', text[:MOST_TEXT])
    return _MASKS.sub("\x00", head) + text[MOST_TEXT:]


_ID_KEY = re.compile(r'"(?:_?id|uuid|guid|token|cursor|hash|key)" ?: ?(?:"[^"]{0,128}"|-?\d{1,32})', re.I)


def without_ids(text: str) -> str:
    """A masked text without the values of fields that are named as ids, and without times of day."""
    head = _BARE_CLOCK.sub("\x00", text[:MOST_TEXT])
    return _ID_KEY.sub('""', head) + text[MOST_TEXT:]


def same_but_for_ids(one: str, other: str) -> bool:
    """Whether two masked results differ in nothing but words that look like ids or large counters, in few places."""
    if len(one) > MOST_TEXT or len(other) > MOST_TEXT or _WORD.sub("", one) != _WORD.sub("", other):
        return False
    first, second = _WORD.findall(one), _WORD.findall(other)
    changed = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
    few = len(first) == len(second) and 3 * len(changed) <= len(first)
    return few and all(_is_id(a) and _is_id(b) for a, b in changed)


def _is_id(word: str) -> bool:
    digits = sum(character.isdigit() for character in word)
    letters = any(character.isalpha() for character in word)
    return digits >= 2 and len(word) >= 6 if letters else digits == len(word) >= 8


def lasting_arguments(arguments: Any) -> Any:
    """Arguments without those that are there for the record only, unless nothing would be left."""
    if not isinstance(arguments, Mapping):
        return arguments
    dropped = [key for key in arguments if isinstance(key, str) and _VOLATILE_ARGUMENT.fullmatch(key)]
    if "command" in arguments and "description" in arguments:
        dropped.append("description")
    if not dropped or len(dropped) == len(arguments):
        return arguments
    return {key: value for key, value in arguments.items() if key not in dropped}
