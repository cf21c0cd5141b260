"""A guard that could not be made. It holds its place in the list, so that people see it is missing and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from checkengine.guards.errors import UserError
from checkengine.guards.failure import place
from checkengine.guards.finding import Finding
from checkengine.guards.guard import Guard
from checkengine.guards.rows import NO_FINDINGS
from checkengine.guards.step import SequenceStart, StepView

logger = logging.getLogger("checkengine.guards")


class AbsentGuard:
    """Finds nothing, and cannot be switched on."""

    version: int = 0
    needs_stats: bool = False

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def begin(self, start: SequenceStart) -> None:
        pass

    def observe(self, step: StepView) -> Iterable[Finding]:
        return NO_FINDINGS

    def forget(self, sequence: str) -> None:
        pass


def made_or_absent(name: str, make: Callable[[], Guard]) -> Guard:
    """What `make` gives. A fault of ours (a table that is damaged, a library that changed) costs the one guard; a
    UserError is the user's to mend, and is raised."""
    try:
        return make()
    except UserError:
        raise
    except Exception as error:
        reason = f"could not be made: {type(error).__name__} {place(error)}"
        logger.error("guard %s %s; the others go on", name, reason, exc_info=error)
        return AbsentGuard(name, reason)
