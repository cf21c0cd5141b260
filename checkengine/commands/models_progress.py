"""Progress of a fetch: a bar on a terminal, one line a phase elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class ConsoleProgress:
    """Writes to stderr, so that stdout holds the answer only."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish_phase()
        self._bar.stop()

    def phase(self, name: str, total_bytes: int | None = None) -> None:
        self._finish_phase()
        self._task = self._bar.add_task(name, total=total_bytes)
        if not self._console.is_terminal:
            self._console.print(name)

    def advance(self, done_bytes: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=done_bytes)

    def _finish_phase(self) -> None:
        if self._task is None:
            return
        task = self._bar.tasks[self._task]
        total = task.total or task.completed or 1
        self._bar.update(self._task, total=total, completed=total)
        self._bar.stop_task(self._task)
