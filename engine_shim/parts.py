"""Parts of the shim that fail open: what raises is left out, and serving goes on (design rule 6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("checkengine.shim")

FAILURES = 3
"""A part that fails this often in a row is switched off until it is armed again."""


class Part:
    """Runs calls of one part; never raises. `on_off` hears, once, when the part goes off, and why."""

    __slots__ = ("_lasting", "_on_off", "failures", "name", "off")

    def __init__(self, name: str, on_off: Callable[[str, str], None] | None = None, *, lasting: bool = False) -> None:
        """A `lasting` part never goes off, since others build on it; it is logged once until it is armed."""
        self.name = name
        self._lasting = lasting
        self.failures = 0
        """In a row."""
        self.off = False
        self._on_off = on_off

    def run(self, call: Callable[..., object], *arguments: Any) -> bool:
        """False where the call was left out or raised."""
        if self.off:
            return False
        try:
            call(*arguments)
        except Exception as error:
            self.failed(error)
            return False
        if not self._lasting:
            self.failures = 0
        return True

    def failed(self, error: Exception) -> None:
        """The first of several failures in a row is logged with its traceback, the last one switches the part off."""
        self.failures += 1
        if self.failures == 1:
            logger.error("%s failed; serving goes on without it for this step", self.name, exc_info=error)
        if self.failures >= FAILURES and not self.off and not self._lasting:
            self.off = True
            logger.error("%s failed %d times in a row and is off; arm it again at run time", self.name, self.failures)
            if self._on_off is not None:
                self._on_off(self.name, f"failed {self.failures} times in a row: {type(error).__name__}")

    def arm(self) -> None:
        self.failures, self.off = 0, False
