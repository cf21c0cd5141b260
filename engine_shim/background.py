"""One thread that works on what the step's thread hands over, a few things at a time."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger("checkengine.shim")

T = TypeVar("T")


class BackgroundWorker(Generic[T]):
    """`work` runs on the worker's thread; what it raises is logged. At most `waiting` things wait."""

    def __init__(self, work: Callable[[T], None], *, name: str, waiting: int) -> None:
        self.open = True
        self._work = work
        self._name = name
        self._queue: queue.Queue[T | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._run, name=f"checkengine-{name}", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Ask before making what would be handed over for nothing."""
        return not self.open or self._queue.full()

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is worked on."""
        return self._queue.unfinished_tasks == 0

    def put(self, thing: T) -> bool:
        """Never waits. False where it was not taken: too much waits, or the worker is closed."""
        if not self.open:
            return False
        try:
            self._queue.put_nowait(thing)
        except queue.Full:
            return False
        return True

    def wait(self) -> None:
        """Until nothing waits and nothing is worked on."""
        self._queue.join()

    def close(self, timeout: float) -> bool:
        """Work off what waits, then end the thread. False where `timeout` seconds did not do; the rest is lost."""
        self.open = False
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            logger.warning("the %s thread hangs: %d things are lost", self._name, self._queue.qsize())
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (thing := self._queue.get()) is not None:
            try:
                self._work(thing)
            except Exception:
                logger.exception("the %s thread failed", self._name)
            finally:
                self._queue.task_done()
