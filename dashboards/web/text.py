"""Text of strangers, as it is shown: every character visible, never longer than a person reads."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from checkengine.guards.errors import one_line

MOST = 500
"""Characters of one value; a token of a megabyte is told by its beginning and its length."""


def visible(value: Any) -> Any:
    """What templates print: text with all that does not show (controls, directions, zero widths, lone surrogates)
    escaped, and cut. Markup and numbers stay."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if len(value) > MOST:
        value = f"{value[:MOST]}… ({len(value):,} characters)"
    return one_line(value)


def exact(value: str) -> Markup:
    """For a form's value, which must come back as it went; a browser replaces lone surrogates whatever we do."""
    return Markup(escape(value.encode("utf-8", "replace").decode()))
