"""How many captures one fault may have in a while: a fault that strikes often must not fill the disk."""

from __future__ import annotations

from collections import OrderedDict, deque

from checkengine.guards.finding import Finding

Fault = tuple[str, str, str]
"""Kind, guard and kernel: within a process everything else that tells faults apart is the same."""

MOST_FAULTS = 1024


class FaultLimit:
    """At most `most` in any `seconds`. Its memory is bounded: the faults seen longest ago are forgotten."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._times: OrderedDict[Fault, deque[float]] = OrderedDict()

    def admit(self, finding: Finding, kernel: str, now: float) -> bool:
        """Whether one more is due; it counts then."""
        times = self._of((finding.kind, finding.guard, kernel))
        while times and times[0] <= now - self._seconds:
            times.popleft()
        if len(times) >= self._most:
            return False
        times.append(now)
        return True

    def take_back(self, finding: Finding, kernel: str) -> None:
        """The one admitted last came to nothing: it does not count."""
        times = self._of((finding.kind, finding.guard, kernel))
        if times:
            times.pop()

    def _of(self, fault: Fault) -> deque[float]:
        times = self._times.setdefault(fault, deque())
        self._times.move_to_end(fault)
        while len(self._times) > MOST_FAULTS:
            self._times.popitem(last=False)
        return times
