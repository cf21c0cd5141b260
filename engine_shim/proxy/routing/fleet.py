"""Who may be sent requests: bursts drain, failing canaries drain, convictions hold out until a person releases.

What an upstream deserves and what is done are two things: of those that should be out only as many are as the limit of
the pool allows, convicted ones first, then the longest waiting. A fault of the whole fleet (a bad model, a bad client)
must not drain the fleet: beyond the limit there is an alarm and no drain.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from checkengine.engine_shim.proxy.routing.bursts import BurstWindow
from checkengine.engine_shim.proxy.routing.settings import CanarySettings, DrainSettings
from checkengine.guards.errors import UserError

logger = logging.getLogger("checkengine.proxy.routing")


class Wish(StrEnum):
    """Why an upstream should be out, the graver first."""

    CONVICTED = "convicted"
    BURST = "burst"
    CANARY = "canary"


RETURNS = (Wish.BURST, Wish.CANARY)
"""After canaries have passed; a convicted one does not."""


class Standing(StrEnum):
    SERVING = "serving"
    DRAINED = "drained"
    HELD = "held"
    """Drained for a conviction."""
    DOWN = "down"
    """Not reachable. Counts for no limit: nobody took it out."""


@dataclass(frozen=True, slots=True)
class Case:
    """Against one upstream."""

    wish: Wish
    by: str
    """"burst", "canary", "judge", "siblings", or a person."""
    reason: str
    since: float
    """Unix seconds."""

    def to_json(self) -> dict[str, Any]:
        return {"wish": str(self.wish), "by": self.by, "reason": self.reason, "since": self.since}


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """For logs, metrics and the spool. `what`: drained, held, returned, released, down, up, alarm."""

    what: str
    name: str
    pool: str
    reason: str
    at: float


@dataclass(slots=True)
class _Member:
    name: str
    pool: str
    window: BurstWindow
    case: Case | None = None
    is_out: bool = False
    failures: int = 0
    is_down: bool = False
    canary_passes: int = 0
    canary_failures: int = 0
    is_told: bool = False
    """An alarm was raised because it could not be taken out."""


class Fleet:
    """`members`: pool by name. Not thread-safe.

    `clock`: Unix seconds. `tell` gets every change, `changed` the open cases; `cases` are those of the last run.
    """

    def __init__(
        self,
        members: Mapping[str, str],
        drain: DrainSettings,
        canary: CanarySettings,
        *,
        clock: Callable[[], float],
        tell: Callable[[FleetEvent], None] = lambda event: None,
        changed: Callable[[Mapping[str, Case]], None] = lambda cases: None,
        cases: Mapping[str, Case] | None = None,
    ) -> None:
        self._drain, self._canary = drain, canary
        self._clock, self._tell, self._changed = clock, tell, changed
        self.canaries: Counter[str] = Counter(passed=0, failed=0)
        """Answers to canaries since the start, for metrics."""
        self._members = {name: _Member(name, pool, BurstWindow(drain.seconds)) for name, pool in members.items()}
        self._strangers = {name: case for name, case in (cases or {}).items() if name not in self._members}
        self._pools: defaultdict[str, list[_Member]] = defaultdict(list)
        for member in self._members.values():
            self._pools[member.pool].append(member)
            member.case = (cases or {}).get(member.name)
        for pool in self._pools:
            self._settle(pool, "found so at the start")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._members)

    def pool(self, name: str) -> str:
        return self._member(name).pool

    def standings(self) -> dict[str, int]:
        """How many members have each standing; zero where none has."""
        counted = Counter(self.standing(name) for name in self._members)
        return {str(standing): counted[standing] for standing in Standing}

    def standing(self, name: str) -> Standing:
        member = self._member(name)
        if member.is_out and member.case is not None:
            return Standing.HELD if member.case.wish is Wish.CONVICTED else Standing.DRAINED
        return Standing.DOWN if member.is_down else Standing.SERVING

    def case(self, name: str) -> Case | None:
        """Why it is out, or should be where the limit keeps it in."""
        return self._member(name).case

    def serving(self, pool: str) -> list[str]:
        """Upstreams to choose from. Where none serves, those that are down or drained for a burst: a request may
        still be answered. One held by a conviction is never among them."""
        found = self._with(pool, Standing.SERVING)
        return found or self._with(pool, Standing.DOWN, Standing.DRAINED)

    def pools(self) -> tuple[str, ...]:
        return tuple(self._pools)

    def most_out(self, pool: str) -> int:
        size = len(self._pools[pool])
        return min(max(1, math.floor(self._drain.most_share * size)), size - 1)

    def ended(self, name: str) -> None:
        """A request to it ended, with or without an incident, after it had answered."""
        member = self._member(name)
        member.window.request(self._clock())
        self._reached(member)

    def failed(self, name: str, reason: str) -> None:
        """No connection, a reset, or 5xx: so many in a row, and it is down."""
        member = self._member(name)
        member.failures += 1
        if member.failures >= self._drain.failures_to_down and not member.is_down:
            member.is_down = True
            self._say("down", member, reason)

    def incident(self, name: str, kind: str, client: str = "") -> None:
        """A finding on a request to it. `client` is anything that tells clients apart: one that asks for endless
        repetition counts once, and drains nobody. Without it every request counts."""
        member, now = self._member(name), self._clock()
        if kind not in self._drain.kinds:
            return
        member.window.incident(now, client)
        count, requests = member.window.counts(now)
        if member.case is None and count >= self._drain.incidents and count >= self._drain.share * requests:
            self._accuse(member, Wish.BURST, "burst", f"{count} incidents in {requests} requests, last {kind}")

    def reached(self, name: str) -> None:
        """It answered something: it is not down."""
        self._reached(self._member(name))

    def canary(self, name: str, failure: str | None) -> None:
        """A canary was answered; `failure` says what was wrong with the answer."""
        self.canaries["passed" if failure is None else "failed"] += 1
        member = self._member(name)
        self._reached(member)
        member.canary_passes = member.canary_passes + 1 if failure is None else 0
        member.canary_failures = member.canary_failures + 1 if failure is not None else 0
        if failure is not None and member.case is None and member.canary_failures >= self._canary.failures:
            self._accuse(member, Wish.CANARY, "canary", failure)
        elif member.case and member.case.wish in RETURNS and member.canary_passes >= self._canary.passes:
            self._close(member, "returned", f"{member.canary_passes} canaries passed")

    def canary_unanswered(self, name: str, reason: str) -> None:
        """No connection or no answer in time."""
        member = self._member(name)
        member.canary_passes = 0
        member.failures += 1
        if not member.is_down and member.failures >= min(self._canary.failures, self._drain.failures_to_down):
            member.is_down = True
            self._say("down", member, reason)

    def convict(self, name: str, by: str, reason: str) -> None:
        """By the judge, the sibling test or a person. Out until `release`."""
        member = self._member(name)
        if member.case is None or member.case.wish is not Wish.CONVICTED:
            self._accuse(member, Wish.CONVICTED, by, reason)

    def release(self, name: str, by: str) -> None:
        """By a person. UserError where it is not out and does not wait to be."""
        member = self._member(name)
        if member.case is None:
            raise UserError(f"{name} is not out; nothing to release")
        self._close(member, "released", f"by {by}")

    def _accuse(self, member: _Member, wish: Wish, by: str, reason: str) -> None:
        member.case = Case(wish, by, reason, self._clock())
        member.canary_passes, member.is_told = 0, False
        self._settle(member.pool, reason)
        self._save()

    def _close(self, member: _Member, what: str, reason: str) -> None:
        member.case, member.is_out, member.is_told = None, False, False
        member.window.clear()
        member.canary_failures = 0
        self._say(what, member, reason)
        self._settle(member.pool, "another one returned")
        self._save()

    def _settle(self, pool: str, reason: str) -> None:
        """Takes out those that should be, as far as the limit allows, and gives back whoever had to make room."""
        wanted = [member for member in self._pools[pool] if member.case is not None]
        wanted.sort(key=lambda member: (member.case.wish is not Wish.CONVICTED, member.case.since))  # type: ignore[union-attr]
        limit = self.most_out(pool)
        for index, member in enumerate(wanted):
            was_out, member.is_out = member.is_out, index < limit
            if member.is_out and not was_out:
                self._say(str(self.standing(member.name)), member, _words(member.case))
            elif was_out and not member.is_out:
                self._say("returned", member, "a graver case needs its place")
            if not member.is_out and not member.is_told:
                member.is_told = True
                self._say("alarm", member, f"{limit} of {len(self._pools[pool])} may be out; {_words(member.case)}")

    def _reached(self, member: _Member) -> None:
        member.failures = 0
        if member.is_down:
            member.is_down = False
            self._say("up", member, "it answered")

    def _with(self, pool: str, *standings: Standing) -> list[str]:
        names = [member.name for member in self._pools.get(pool, ())]
        return [name for name in names if self.standing(name) in standings]

    def _member(self, name: str) -> _Member:
        try:
            return self._members[name]
        except KeyError:
            raise UserError(f"there is no upstream {name!r}; there are {', '.join(self._members)}") from None

    def _say(self, what: str, member: _Member, reason: str) -> None:
        event = FleetEvent(what, member.name, member.pool, reason, self._clock())
        log = logger.error if what == "alarm" else logger.warning
        log("upstream %s of pool %s: %s (%s)", event.name, event.pool, what, reason)
        self._tell(event)

    def _save(self) -> None:
        open_cases = {name: each.case for name, each in self._members.items() if each.case is not None}
        self._changed({**self._strangers, **open_cases})


def _words(case: Case | None) -> str:
    return f"{case.by}: {case.reason}" if case else ""


def case_of_json(value: Mapping[str, Any]) -> Case:
    """KeyError, TypeError or ValueError where it is none."""
    since = float(value["since"])
    if not math.isfinite(since):
        raise ValueError("since is not a time")
    return Case(Wish(value["wish"]), str(value["by"]), str(value["reason"]), since)
