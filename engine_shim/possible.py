"""From what the policy wants to what the engine can do."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from checkengine.engine_shim.adapter import Capabilities
from checkengine.guards.action import Action, ActionKind

logger = logging.getLogger("checkengine.shim")

NOBODYS = (ActionKind.OBSERVE, ActionKind.WARN, ActionKind.DRAIN)
"""Actions that ask nothing of the engine."""


class PossibleActions:
    """A retry where the engine cannot retry is a stop; what else it cannot do is left out, and logged once."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._can = frozenset(
            kind
            for kind, able in (
                (ActionKind.STOP, capabilities.stop),
                (ActionKind.RETRY, capabilities.retry),
                (ActionKind.QUARANTINE, capabilities.quarantine),
            )
            if able
        ).union(NOBODYS)
        self._told: set[ActionKind] = set()

    def of(self, actions: Iterable[Action]) -> list[Action]:
        return [possible for action in actions if (possible := self._possible(action)) is not None]

    def _possible(self, action: Action) -> Action | None:
        if action.kind in self._can:
            return action
        instead = ActionKind.STOP if action.kind is ActionKind.RETRY and ActionKind.STOP in self._can else None
        if action.kind not in self._told:
            self._told.add(action.kind)
            outcome = "it stops the sequence instead" if instead else "it is left out"
            logger.warning("this engine cannot %s a sequence: %s, now and later", action.kind.value, outcome)
        return None if instead is None else replace(action, kind=instead)
