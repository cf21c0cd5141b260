"""Reads the orders that lie beside this process's spool, and has each obeyed once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from checkengine.replay import orders
from checkengine.replay.orders import Order

logger = logging.getLogger("checkengine.orders")

LOOK_SECONDS = 0.5

Obey = Callable[[Order], None]
"""Raises ValueError (UserError, KeyError…) where it cannot be obeyed."""


class OrderWatch:
    """A thread of the engine's process. It looks at one small file's state twice a second; what goes wrong is logged
    and stops nothing. `applied` is the highest revision that was dealt with, obeyed or refused."""

    def __init__(self, path: Path, replica: str, obey: Obey, told: Callable[[], None] = lambda: None) -> None:
        """`told` is called after orders were dealt with."""
        self.applied = 0
        self.refused: dict[int, str] = {}
        """Why, by revision; the newest few."""
        self._path, self._replica, self._obey, self._told = path, replica, obey, told
        self._stamp: tuple[int, int] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkengine-orders", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self._path.unlink(missing_ok=True)

    def look(self) -> bool:
        """Deal with what is new; False where nothing is."""
        stamp = self._state()
        if stamp is None or stamp == self._stamp:
            return False
        self._stamp = stamp
        fresh = [order for order in orders.read(self._path, self._replica) if order.revision > self.applied]
        for order in fresh:
            self._deal_with(order)
        if fresh:
            self._told()
        return bool(fresh)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except (OSError, ValueError) as error:
                logger.error("the orders in %s cannot be read: %s", self._path, error)

    def _state(self) -> tuple[int, int] | None:
        try:
            state = self._path.stat()
        except FileNotFoundError:
            return None
        return state.st_mtime_ns, state.st_ino

    def _deal_with(self, order: Order) -> None:
        words = f"{order.subject} {order.name} {order.state}"
        try:
            self._obey(order)
            logger.warning("obeyed order %d: %s", order.revision, words)
        except Exception as error:
            logger.error("order %d (%s) cannot be obeyed: %s", order.revision, words, error)
            self.refused[order.revision] = str(error)[:300]
            while len(self.refused) > 16:
                del self.refused[min(self.refused)]
        self.applied = max(self.applied, order.revision)
