"""Where a request's time goes besides the model's: the queue, the prefix cache, the guards, the text."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds. Guards work on whole steps, so their time is shared with the step's other rows."""

    queued: float = 0.0
    """From its submission to its first step."""
    lookup: float = 0.0
    """In the prefix cache and the tiers behind it, as often as it was looked for."""
    guard: float = 0.0
    """In its steps."""
    detokenise: float = 0.0
    steps: int = 0


class Stopwatch:
    """A context that adds its seconds up; not to be entered twice at once."""

    __slots__ = ("_began", "seconds")

    def __init__(self) -> None:
        self.seconds = self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.seconds += time.perf_counter() - self._began


@dataclass(slots=True)
class PhaseClock:
    """Of one request as it runs; a retry goes on with it."""

    submitted: float = field(default_factory=time.perf_counter)
    queued: float | None = None
    lookup: Stopwatch = field(default_factory=Stopwatch)
    detokenise: Stopwatch = field(default_factory=Stopwatch)
    guard: float = 0.0
    steps: int = 0

    def admitted(self) -> None:
        """The first time counts: what is preempted has begun already."""
        if self.queued is None:
            self.queued = time.perf_counter() - self.submitted

    def stepped(self, guard_seconds: float) -> None:
        self.guard += guard_seconds
        self.steps += 1

    def times(self) -> PhaseTimes:
        return PhaseTimes(self.queued or 0.0, self.lookup.seconds, self.guard, self.detokenise.seconds, self.steps)


def merged(choices: Iterable[PhaseTimes]) -> PhaseTimes | None:
    """Of a request with several choices: they wait and are guarded at once, and are looked up and detokenised one
    after the other."""
    known = list(choices)
    if not known:
        return None
    return PhaseTimes(
        min(each.queued for each in known),
        sum(each.lookup for each in known),
        max(each.guard for each in known),
        sum(each.detokenise for each in known),
        max(each.steps for each in known),
    )
