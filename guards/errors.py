"""An error that a person can act on."""

from __future__ import annotations


class UserError(Exception):
    """The message is one line: what went wrong, where, and what to do.

    Commands print it without a traceback and end with `exit_code`. As text, whatever would not print (a newline in a
    path, a terminal's control codes in a damaged file) is escaped.
    """

    exit_code: int = 2

    def __str__(self) -> str:
        return one_line(super().__str__())


def first_line(error: BaseException) -> str:
    """Of what it says; its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def one_line(text: str) -> str:
    """`text` with every character escaped that does not print, newlines and lone surrogates among them."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
