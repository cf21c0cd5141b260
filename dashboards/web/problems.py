"""What a page says when it cannot do what was asked: a status, a title, and one sentence on what to do."""

from __future__ import annotations

from collections.abc import Mapping


class Problem(Exception):
    """Shown to whoever asked; never holds a secret."""

    def __init__(self, status: int, title: str, detail: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(title)
        self.status, self.title, self.detail, self.headers = status, title, detail, dict(headers or {})


def not_found(what: str) -> Problem:
    return Problem(404, f"There is no {what}", "It may have been removed by retention, or the link is cut short.")
