"""On which line of a TOML text a key is defined: tomllib reads values, not places."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

LONGEST_VALUE = 100
"""Lines of one value that are looked through; no line is named where a value is longer."""


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """1-based line on which the statement begins that first makes `path` exist; None where nothing does, or where it
    cannot be told in good time. `text` is valid TOML.

    Cuts the text after a line and asks the parser itself, so quoting, dotted keys, inline tables and values of several
    lines are all read as TOML means them. Halving finds the place, since a longer beginning holds all of a shorter one.
    """
    lines = text.split("\n")
    without, having = 0, len(lines)
    if not exists(tomllib.loads(text), path):
        return None
    while having - without > 1:
        middle = (without + having) // 2
        end, known = _whole(lines, middle)
        if end is None:
            return None
        if exists(known, path):
            having = end
        else:
            without = middle
    before, _ = _whole(lines, having - 1)
    return None if before is None else before + 1


def _whole(lines: Sequence[str], end: int) -> tuple[int | None, Any]:
    """The most lines up to `end` that are TOML by themselves, and what they say; None where a value is too long."""
    for last in range(end, max(-1, end - LONGEST_VALUE), -1):
        try:
            return last, tomllib.loads("\n".join(lines[:last]))
        except tomllib.TOMLDecodeError:
            continue  # inside a value of several lines
    return None, None


def exists(value: Any, path: Sequence[str | int]) -> bool:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True
