from __future__ import annotations

import pytest

from checkengine.guards.errors import UserError


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\nb is no folder", "a\\nb is no folder"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("b\udcff", "b\\udcff"),
        ("ünïcode 漢字 … 🙂", "ünïcode 漢字 … 🙂"),
    ],
)
def test_an_error_for_a_person_is_one_line_of_printable_text(text: str, told: str) -> None:
    assert str(UserError(text)) == told
