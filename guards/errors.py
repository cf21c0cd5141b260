"""An error that a person can act on."""

from __future__ import annotations


class UserError(Exception):
    """The message is one line: what went wrong, where, and what to do.

    Commands print it without a traceback and end with `exit_code`.
    """

    exit_code: int = 2
