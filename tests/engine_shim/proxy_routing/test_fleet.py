"""Who may be sent requests."""

from __future__ import annotations

import pytest

from checkengine.engine_shim.proxy.routing.fleet import Case, Fleet, FleetEvent, Standing, Wish
from checkengine.engine_shim.proxy.routing.settings import CanarySettings, DrainSettings
from checkengine.guards.errors import UserError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Told:
    def __init__(self, count: int, cases: dict[str, Case] | None = None) -> None:
        self.clock = Clock()
        self.events: list[FleetEvent] = []
        self.saved: dict[str, Case] = {}
        self.fleet = Fleet(
            {f"u{index}": "default" for index in range(count)},
            DrainSettings(),
            CanarySettings(),
            clock=self.clock,
            tell=self.events.append,
            changed=lambda cases: self.saved.update(cases) if cases else self.saved.clear(),
            cases=cases,
        )

    def burst(self, name: str, kind: str = "logits.uniform", count: int = 5) -> None:
        for index in range(count):
            self.fleet.ended(name)
            self.fleet.incident(name, kind, f"client-{index}")

    def whats(self) -> list[tuple[str, str]]:
        return [(event.what, event.name) for event in self.events]


def test_a_burst_of_incidents_drains_and_three_canaries_bring_it_back() -> None:
    told = Told(3)
    told.burst("u1")
    assert told.fleet.standing("u1") is Standing.DRAINED
    assert told.fleet.serving("default") == ["u0", "u2"]
    told.fleet.canary("u1", None)
    told.fleet.canary("u1", None)
    assert told.fleet.standing("u1") is Standing.DRAINED
    told.fleet.canary("u1", None)
    assert told.fleet.serving("default") == ["u0", "u1", "u2"]
    assert told.whats() == [("drained", "u1"), ("returned", "u1")]


def test_a_canary_that_fails_starts_the_count_of_passes_anew() -> None:
    told = Told(3)
    told.burst("u1")
    for failure in (None, None, "a wrong answer", None, None):
        told.fleet.canary("u1", failure)
    assert told.fleet.standing("u1") is Standing.DRAINED


def test_incidents_that_are_few_of_many_requests_drain_nobody() -> None:
    told = Told(3)
    for _ in range(100):
        told.fleet.ended("u1")
    told.burst("u1", count=10)
    assert told.fleet.standing("u1") is Standing.SERVING


def test_incidents_spread_over_hours_drain_nobody() -> None:
    told = Told(3)
    for index in range(50):
        told.fleet.ended("u1")
        told.fleet.incident("u1", "logits.uniform", f"client-{index}")
        told.clock.now += 30.0
    assert told.fleet.standing("u1") is Standing.SERVING


def test_one_client_with_a_thousand_incidents_drains_nobody() -> None:
    told = Told(3)
    for _ in range(1000):
        told.fleet.ended("u1")
        told.fleet.incident("u1", "repetition.loop", "the same client")
    assert told.fleet.standing("u1") is Standing.SERVING


def test_kinds_that_are_a_clients_doing_drain_nobody() -> None:
    told = Told(3)
    told.burst("u1", "tool_call.loop", 50)
    assert told.fleet.standing("u1") is Standing.SERVING


@pytest.mark.parametrize(("size", "limit"), [(1, 0), (2, 1), (9, 1), (10, 1), (19, 1), (20, 2), (100, 10)])
def test_a_fault_of_the_whole_fleet_drains_a_tenth_and_alarms(size: int, limit: int) -> None:
    told = Told(size)
    for name in told.fleet.names:
        told.burst(name)
    out = [name for name in told.fleet.names if told.fleet.standing(name) is Standing.DRAINED]
    assert len(out) == limit
    assert sum(what == "alarm" for what, _ in told.whats()) == size - limit
    assert len(told.fleet.serving("default")) == size - limit


def test_the_next_one_is_drained_when_a_place_is_free() -> None:
    told = Told(3)
    told.burst("u0")
    told.clock.now += 1
    told.burst("u1")
    assert told.fleet.serving("default") == ["u1", "u2"]
    for _ in range(3):
        told.fleet.canary("u0", None)
    assert told.fleet.serving("default") == ["u0", "u2"]


def test_a_conviction_takes_the_place_of_a_burst() -> None:
    told = Told(3)
    told.burst("u0")
    told.fleet.convict("u1", "judge", "stale KV, layer 3")
    assert told.fleet.standing("u1") is Standing.HELD
    assert told.fleet.serving("default") == ["u0", "u2"]
    assert ("alarm", "u0") in told.whats()


def test_a_convicted_upstream_stays_out_whatever_its_canaries_say() -> None:
    told = Told(3)
    told.fleet.convict("u1", "siblings", "10 of 100")
    for _ in range(50):
        told.fleet.canary("u1", None)
        told.fleet.ended("u1")
    assert told.fleet.standing("u1") is Standing.HELD
    told.fleet.release("u1", "ada")
    assert told.fleet.standing("u1") is Standing.SERVING
    assert told.whats() == [("held", "u1"), ("released", "u1")]


def test_a_drained_upstream_that_is_convicted_does_not_return_by_canaries() -> None:
    told = Told(3)
    told.burst("u1")
    told.fleet.convict("u1", "judge", "code defect")
    for _ in range(3):
        told.fleet.canary("u1", None)
    assert told.fleet.standing("u1") is Standing.HELD


def test_a_convicted_upstream_is_not_used_even_when_all_others_are_down() -> None:
    told = Told(2)
    told.fleet.convict("u1", "judge", "code defect")
    for _ in range(3):
        told.fleet.failed("u0", "refused")
    assert told.fleet.standing("u0") is Standing.DOWN
    assert told.fleet.serving("default") == ["u0"]


def test_with_nobody_up_those_that_are_down_or_drained_are_tried() -> None:
    told = Told(2)
    told.burst("u1")
    for _ in range(3):
        told.fleet.failed("u0", "refused")
    assert told.fleet.serving("default") == ["u0", "u1"]


def test_an_upstream_that_answers_again_is_up_at_once() -> None:
    told = Told(2)
    for _ in range(3):
        told.fleet.failed("u0", "refused")
    told.fleet.canary("u0", None)
    assert told.fleet.serving("default") == ["u0", "u1"]
    assert told.whats() == [("down", "u0"), ("up", "u0")]


def test_two_wrong_canaries_in_a_row_drain() -> None:
    told = Told(3)
    told.fleet.canary("u2", "a wrong answer to capital")
    assert told.fleet.standing("u2") is Standing.SERVING
    told.fleet.canary("u2", "a wrong answer to colour")
    assert told.fleet.standing("u2") is Standing.DRAINED
    assert told.fleet.case("u2").wish is Wish.CANARY


def test_cases_of_the_last_run_are_out_from_the_start_and_strangers_are_kept() -> None:
    case = Case(Wish.CONVICTED, "judge", "code defect", 5.0)
    told = Told(3, {"u1": case, "not configured now": case})
    assert told.fleet.standing("u1") is Standing.HELD
    told.burst("u0")
    assert told.saved.keys() == {"u0", "u1", "not configured now"}


def test_releasing_one_that_is_not_out_or_not_there_is_one_clear_error() -> None:
    told = Told(2)
    with pytest.raises(UserError, match="u1 is not out"):
        told.fleet.release("u1", "ada")
    with pytest.raises(UserError, match="no upstream 'x'; there are u0, u1"):
        told.fleet.convict("x", "ada", "why not")
