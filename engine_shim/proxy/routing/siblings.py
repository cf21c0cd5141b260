"""The sibling test over upstreams: one with findings more often than the others is convicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from checkengine.guards.settings import SiblingSettings
from checkengine.guards.siblings import SiblingGuard
from checkengine.guards.text import TextFinding

DIMENSION = "replica"


class SiblingWatch:
    """`convict(name, reason)` is called once for each accusation. Not thread-safe."""

    def __init__(self, settings: SiblingSettings, convict: Callable[[str, str], None]) -> None:
        dimensions = settings.model_copy(update={"dimensions": (DIMENSION,)})
        self._guard = SiblingGuard(dimensions) if settings.action != "off" else None
        self._convict = convict

    def ended(self, t: float, name: str, kinds: Iterable[str]) -> None:
        """A request to `name` ended with findings of these kinds, each of severity ERROR."""
        if self._guard is None:
            return
        labels = {DIMENSION: name}
        told = self._guard.request(t, labels)
        for kind in sorted(set(kinds)):
            told += self._guard.finding(t, kind, labels)
        for finding in told:
            self._convict(finding.id, _words(finding))

    def readmit(self, name: str) -> None:
        if self._guard is not None:
            self._guard.readmit(DIMENSION, name)


def _words(finding: TextFinding) -> str:
    evidence = finding.evidence
    if evidence["exact"]:
        return f"{evidence['of']}, which no healthy server has"
    return (
        f"{evidence['of']} in {evidence['findings']} of {evidence['requests']} requests, "
        f"siblings {evidence['siblings_per_million']} per million"
    )
