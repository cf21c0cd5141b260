"""All guards on one step after another. A guard never takes serving down (design rule 6)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from checkengine.guards.absent import AbsentGuard
from checkengine.guards.events import Event, GuardDisabled
from checkengine.guards.failure import place
from checkengine.guards.finding import Finding
from checkengine.guards.guard import Guard
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.step import SequenceStart, StepView

logger = logging.getLogger("checkengine.guards")

OFF_IN_CONFIGURATION = "off in the configuration"
"""Why a guard is not active that nobody wants to be: no reason to alarm."""


@dataclass(frozen=True, slots=True)
class GuardState:
    """How a guard is doing. CPU times are of the thread that runs the steps."""

    active: bool
    reason: str
    """Why it is not active; empty where it is."""
    steps: int
    cpu_seconds: float
    longest_step_seconds: float
    overruns: int


class _Seat:
    """A guard with its budget and its account."""

    __slots__ = (
        "base",
        "guard",
        "in_a_row",
        "longest",
        "overruns",
        "per_row",
        "reason",
        "rejoins",
        "seated_steps",
        "spent",
        "steps",
    )

    def __init__(self, guard: Guard, base: int, per_row: int) -> None:
        self.guard = guard
        self.base = base
        self.per_row = per_row
        self.reason = ""
        self.rejoins = False
        """Switched on while sequences run: these are begun anew before the next step."""
        self.steps = self.seated_steps = self.spent = self.longest = self.overruns = self.in_a_row = 0


class Pipeline:
    """Steps, begins and forgets come from one thread; `disable`, `enable` and `rearm` may come from any.

    `clock` gives Unix seconds for events, `cpu_clock` nanoseconds of CPU time of the calling thread.
    """

    def __init__(
        self,
        guards: Iterable[Guard],
        settings: GuardsSettings,
        clock: Callable[[], float] = time.time,
        *,
        publish: Callable[[Event], None] = lambda event: None,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._publish = publish
        self._lock = threading.Lock()
        self._live: dict[str, SequenceStart] = {}
        self._seats = {guard.name: self._seat(guard) for guard in guards}
        self._active: tuple[_Seat, ...] = ()
        self.step_cpu_seconds = 0.0
        """CPU time that all guards together took in the last step."""
        self._reseat()

    @property
    def needs_stats(self) -> bool:
        """True where an active guard reads logits."""
        return any(seat.guard.needs_stats for seat in self._active)

    def begin(self, start: SequenceStart) -> None:
        self._live[start.name] = start
        for seat in self._active:
            self._shielded(seat, seat.guard.begin, start)

    def observe(self, step: StepView) -> list[Finding]:
        """What the active guards found; a guard that raises adds nothing and is switched off."""
        findings: list[Finding] = []
        rows = len(step.sequences)
        clock = self._cpu_clock
        started = before = clock()
        for seat in self._active:
            if seat.rejoins:
                self._rejoin(seat)
            try:
                if found := seat.guard.observe(step):
                    findings += list(found)
            except Exception as error:
                self._fail(seat, error)
            after = clock()
            self._account(seat, after - before, rows)
            before = after
        self.step_cpu_seconds = (before - started) * 1e-9
        return findings

    def forget(self, sequence: str) -> None:
        """The sequence is over: guards free what they keep of it, those that are off too."""
        self._live.pop(sequence, None)
        for seat in self._seats.values():
            self._shielded(seat, seat.guard.forget, sequence)

    def restart(self, sequence: str) -> None:
        """The sequence is retried: guards begin anew with it, and may report it again."""
        start = self._live.get(sequence)
        self.forget(sequence)
        if start is not None:
            self.begin(start)

    def disable(self, guard: str, reason: str = "switched off") -> None:
        """From the next step on. Raises KeyError for a name that is no guard of this pipeline."""
        with self._lock:
            seat = self._seats[guard]
            if seat.reason:
                return
            seat.reason = reason
            self._reseat()
        logger.warning("guard %s is off: %s", guard, reason)
        self._publish(GuardDisabled(guard, reason, self._clock()))

    def enable(self, guard: str) -> None:
        """From the next step on, with a fresh state and a new warm-up. Raises KeyError as `disable` does."""
        with self._lock:
            seat = self._seats[guard]
            if not seat.reason or isinstance(seat.guard, AbsentGuard):
                return
            seat.reason = ""
            seat.rejoins = True
            seat.seated_steps = seat.in_a_row = 0
            self._reseat()
        logger.info("guard %s is on", guard)

    def rearm(self, guard: str) -> None:
        """Switch on again what was switched off by hand or by its own failure."""
        self.enable(guard)

    def states(self) -> Mapping[str, GuardState]:
        return {
            name: GuardState(
                active=not seat.reason,
                reason=seat.reason,
                steps=seat.steps,
                cpu_seconds=seat.spent * 1e-9,
                longest_step_seconds=seat.longest * 1e-9,
                overruns=seat.overruns,
            )
            for name, seat in self._seats.items()
        }

    def _seat(self, guard: Guard) -> _Seat:
        own = self._settings.of(guard.name)
        seat = _Seat(guard, int(own.budget_microseconds * 1000), int(own.budget_microseconds_per_row * 1000))
        if own.action == "off":
            seat.reason = OFF_IN_CONFIGURATION
        if isinstance(guard, AbsentGuard):
            seat.reason = guard.reason
        return seat

    def _reseat(self) -> None:
        self._active = tuple(seat for seat in self._seats.values() if not seat.reason)

    def _account(self, seat: _Seat, spent: int, rows: int) -> None:
        seat.steps += 1
        seat.seated_steps += 1
        seat.spent += spent
        if spent > seat.longest:
            seat.longest = spent
        if spent <= seat.base + rows * seat.per_row:
            seat.in_a_row = 0
        elif seat.seated_steps > self._settings.warm_up_steps:
            self._overrun(seat, spent, rows)

    def _overrun(self, seat: _Seat, spent: int, rows: int) -> None:
        seat.overruns += 1
        seat.in_a_row += 1
        if seat.in_a_row >= self._settings.overruns:
            allowed = (seat.base + rows * seat.per_row) // 1000
            reason = f"took {spent // 1000} µs of CPU in a step of {rows} rows, {seat.in_a_row} times in a row over"
            self.disable(seat.guard.name, f"{reason} its budget of {allowed} µs")

    def _shielded(self, seat: _Seat, call: Callable[..., None], argument: SequenceStart | str) -> None:
        try:
            call(argument)
        except Exception as error:
            self._fail(seat, error)

    def _fail(self, seat: _Seat, error: Exception) -> None:
        self.disable(seat.guard.name, f"raised {type(error).__name__} {place(error)}")

    def _rejoin(self, seat: _Seat) -> None:
        seat.rejoins = False
        for start in list(self._live.values()):
            self._shielded(seat, seat.guard.forget, start.name)
            self._shielded(seat, seat.guard.begin, start)
