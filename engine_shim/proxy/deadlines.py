"""Silence of upstreams and clients, watched for all exchanges together by one task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

EVERY_SECONDS = 0.25


class Waiting(Protocol):
    """An exchange: what it waits for, and since when."""

    deadline: float
    """In seconds of the event loop's clock; infinity where it waits for nothing."""

    def expire(self) -> None:
        """The deadline has passed."""
        ...


class Deadlines:
    """`sweep` is called by the task; a test calls it with a time of its own."""

    def __init__(self) -> None:
        self._waiting: set[Waiting] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, exchange: Waiting) -> None:
        self._waiting.add(exchange)

    def remove(self, exchange: Waiting) -> None:
        self._waiting.discard(exchange)

    def sweep(self, now: float) -> None:
        for exchange in [each for each in self._waiting if each.deadline <= now]:
            exchange.expire()

    def start(self, clock: Callable[[], float]) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run(clock))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, clock: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            self.sweep(clock())
