"""On which line of a TOML text a key is defined: tomllib reads values, not places."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """1-based line on which the statement begins that first makes `path` exist; None where nothing does.

    Grows the text line by line and asks the parser itself, so quoting, dotted keys, inline tables and values of
    several lines are all read as TOML means them. A configuration is short enough for that.
    """
    lines = text.splitlines(keepends=True)
    begins = 0
    for end in range(1, len(lines) + 1):
        try:
            known = tomllib.loads("".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # inside a value of several lines
        if exists(known, path):
            return begins + 1
        begins = end
    return None


def exists(value: Any, path: Sequence[str | int]) -> bool:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True
