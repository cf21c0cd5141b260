"""The guards of the proxy: who makes them, how they are doing, and that none of them takes serving down."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from checkengine.guards.failure import place
from checkengine.guards.pipeline import OFF_IN_CONFIGURATION
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.text import ConversationGuard, TextFinding, TextGuard, TextStart
from checkengine.guards.text_logprobs import LogprobsGuard

logger = logging.getLogger("checkengine.proxy")

MakeText = Callable[[TextStart], TextGuard]
MakeLogprobs = Callable[[TextStart], LogprobsGuard]
MakeConversation = Callable[[], ConversationGuard]
Asked = TypeVar("Asked")
OWN = ("answer", "latency", "embeddings")
"""What the proxy itself checks: whether an answer is whole and its end fits, how long its tokens take, vectors."""


@dataclass(frozen=True, slots=True)
class GuardMakers:
    """By the guard's name in the configuration, `[guards.<name>]`."""

    texts: Mapping[str, MakeText] = field(default_factory=dict)
    logprobs: Mapping[str, MakeLogprobs] = field(default_factory=dict)
    conversations: Mapping[str, MakeConversation] = field(default_factory=dict)


@dataclass(slots=True)
class Seat:
    """A guard's account over all requests. Times are CPU time of the event loop's thread."""

    name: str
    base: int
    per_row: int
    reason: str = ""
    """Why it is off; empty where it is on."""
    batches: int = 0
    failures: int = 0
    """Requests on which it raised."""
    failures_in_a_row: int = 0
    overruns: int = 0
    overruns_in_a_row: int = 0
    nanoseconds: int = 0
    longest: int = 0


class Bench:
    """All seats. A guard that raises is dropped for that request; one that raises or overruns its budget many times in
    a row is switched off. Called from the event loop; switches may come from any thread."""

    def __init__(
        self,
        makers: GuardMakers,
        settings: GuardsSettings,
        *,
        disabled: Callable[[str, str], None] = lambda guard, reason: None,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`disabled` is told of a guard that was switched off, and why."""
        self._makers, self._settings = makers, settings
        self._disabled, self._cpu = disabled, cpu_clock
        self._texts = 0
        names = [*makers.texts, *makers.logprobs, *makers.conversations, *OWN]
        self.seats = {name: self._seat(name) for name in dict.fromkeys(names)}

    def first_batch(self, batch: int) -> int:
        """Chunks that a new text collects before it is read for the first time: half a batch to a whole one, another
        number for each, so that streams which began together are not all read in one instant."""
        earlier = self._texts % (batch // 2 + 1)
        self._texts += 5
        return batch - earlier

    def readers(self, only: frozenset[str] | None = None) -> list[str]:
        """Names of the active guards of text."""
        names = self._makers.texts
        return [name for name in names if not self.seats[name].reason and (only is None or name in only)]

    def make(self, name: str, start: TextStart) -> tuple[Seat, TextGuard] | None:
        """A new guard; None where it cannot be made."""
        seat = self.seats[name]
        try:
            return seat, self._makers.texts[name](start)
        except Exception as error:
            self.failed(seat, error)
            return None

    def logprobs(self, start: TextStart) -> list[tuple[Seat, LogprobsGuard]]:
        return [(self.seats[name], make(start)) for name, make in self._makers.logprobs.items() if self.active(name)]

    def conversations(self) -> list[tuple[Seat, ConversationGuard]]:
        return [(self.seats[name], make()) for name, make in self._makers.conversations.items() if self.active(name)]

    def active(self, name: str) -> bool:
        return not self.seats[name].reason

    def run(
        self, seat: Seat, read: Callable[[Asked], Iterable[TextFinding]], guard: Asked, rows: int
    ) -> list[TextFinding] | None:
        """What it found; None where it raised: it is not to be asked again in this request."""
        began = self._cpu()
        found = self.shielded(seat, read, guard)
        if found is not None:
            self._account(seat, self._cpu() - began, rows)
        return found

    def run_all(
        self, guards: list[tuple[Seat, TextGuard]], read: Callable[[TextGuard], Iterable[TextFinding]], rows: int
    ) -> list[tuple[str, TextFinding]]:
        """Of all guards of one text; one that raises leaves the list. The clock is read once between two."""
        told: list[tuple[str, TextFinding]] = []
        before = self._cpu()
        for index in range(len(guards) - 1, -1, -1):
            seat, guard = guards[index]
            found = self.shielded(seat, read, guard)
            after = self._cpu()
            if found is None:
                del guards[index]
            else:
                self._account(seat, after - before, rows)
                if found:
                    told += [(seat.name, finding) for finding in found]
            before = after
        return told

    def shielded(
        self, seat: Seat, read: Callable[[Asked], Iterable[TextFinding]], guard: Asked
    ) -> list[TextFinding] | None:
        try:
            return list(read(guard))
        except Exception as error:
            self.failed(seat, error)
            return None

    def failed(self, seat: Seat, error: Exception) -> None:
        seat.failures += 1
        seat.failures_in_a_row += 1
        told = f"raised {type(error).__name__} {place(error)}"
        if seat.failures_in_a_row == 1:
            logger.error("guard %s %s; the request goes on without it", seat.name, told)
        if seat.failures_in_a_row >= self._settings.overruns:
            self.disable(seat.name, f"{told}, {seat.failures_in_a_row} times in a row")

    def disable(self, name: str, reason: str = "switched off") -> None:
        """Raises KeyError for a name that is no guard here."""
        seat = self.seats[name]
        if not seat.reason:
            seat.reason = reason
            logger.warning("guard %s is off: %s", name, reason)
            self._disabled(name, reason)

    def enable(self, name: str) -> None:
        """For requests from now on. Raises KeyError as `disable` does."""
        seat = self.seats[name]
        seat.failures_in_a_row = seat.overruns_in_a_row = 0
        seat.reason = ""

    def _seat(self, name: str) -> Seat:
        own = self._settings.of(name)
        seat = Seat(name, int(own.budget_microseconds * 1000), int(own.budget_microseconds_per_row * 1000))
        seat.reason = OFF_IN_CONFIGURATION if own.action == "off" else ""
        return seat

    def _account(self, seat: Seat, spent: int, rows: int) -> None:
        seat.batches += 1
        seat.nanoseconds += spent
        seat.failures_in_a_row = 0
        seat.longest = max(seat.longest, spent)
        if spent <= seat.base + rows * seat.per_row:
            seat.overruns_in_a_row = 0
        elif seat.batches > self._settings.warm_up_steps:
            seat.overruns += 1
            seat.overruns_in_a_row += 1
            if seat.overruns_in_a_row >= self._settings.overruns:
                self.disable(seat.name, f"took {spent // 1000} µs of CPU, {seat.overruns_in_a_row} times in a row")
