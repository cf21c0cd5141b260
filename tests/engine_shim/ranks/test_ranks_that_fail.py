"""Real processes over gloo: ranks are killed, hang, lie and lose links; every answer is that of the undisturbed run.

Times are generous here, so that a busy machine makes no rank look lost; the drill measures them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from checkengine.engine_shim.ranks import Fleet, FleetSettings, Trouble

PATIENT: dict[str, Any] = {"silent_seconds": 30.0, "collective_seconds": 10.0, "answer_seconds": 30.0}
OUTPUT = 12


def prompts() -> dict[str, list[int]]:
    return {f"r{number}": [(number * 17 + index * 5) % 128 for index in range(8 + number)] for number in range(5)}


def served(fleet: Fleet, kill_at: Mapping[int, int] = {}) -> dict[str, list[int]]:
    for name, prompt in prompts().items():
        fleet.submit(name, prompt, OUTPUT)
    left = dict(kill_at)
    while fleet.has_work:
        if fleet.step_number in left:
            fleet.kill(fleet.membership.ranks[left.pop(fleet.step_number)])
        fleet.step()
    return {name: request.tokens for name, request in fleet.requests.items()}


@pytest.fixture(scope="module")
def clean() -> Iterator[dict[str, list[int]]]:
    with Fleet(FleetSettings(**PATIENT)) as fleet:
        answers = served(fleet)
        assert fleet.events == []
        yield answers


def kinds(fleet: Fleet) -> list[str]:
    return [event.kind for event in fleet.events]


def test_two_ranks_killed_one_after_the_other_change_no_answer(clean: dict[str, list[int]]) -> None:
    with Fleet(FleetSettings(**PATIENT)) as fleet:
        assert served(fleet, {3: 1, 7: 0}) == clean
        assert kinds(fleet) == ["lost", "recovered", "lost", "recovered"]
        assert len(fleet.membership.ranks) == 2
        assert set(fleet.membership.experts) == set(fleet.membership.ranks)


def test_a_hot_spare_takes_a_killed_ranks_experts_and_requests(clean: dict[str, list[int]]) -> None:
    with Fleet(FleetSettings(**PATIENT, spares=1)) as fleet:
        assert served(fleet, {4: 2}) == clean
        plan = next(event.plan for event in fleet.events if event.kind == "lost")
        assert plan is not None
        assert set(plan.rehome.values()) == {4}
        assert len(fleet.membership.ranks) == 4


def test_a_rank_that_hangs_while_its_process_beats_is_lost_and_replaced(clean: dict[str, list[int]]) -> None:
    with Fleet(
        FleetSettings(silent_seconds=30, collective_seconds=3, answer_seconds=6), {1: Trouble(hang_at=3)}
    ) as fleet:
        assert served(fleet) == clean
        assert [event.rank for event in fleet.events if event.kind == "lost"] == [1]


def test_a_payload_that_breaks_on_its_way_voids_the_step_and_a_link_that_flaps_costs_the_rank_its_place(
    clean: dict[str, list[int]],
) -> None:
    with Fleet(FleetSettings(**PATIENT), {2: Trouble(flap_every=2)}) as fleet:
        assert served(fleet) == clean
        assert {event.rank for event in fleet.events if event.kind == "payload"} == {2}
        assert [event.rank for event in fleet.events if event.kind == "lost"] == [2]


def test_a_rank_that_answers_wrongly_is_named_by_two_others_and_what_it_touched_is_computed_again(
    clean: dict[str, list[int]],
) -> None:
    with Fleet(FleetSettings(**PATIENT, check_every=3), {2: Trouble(wrong_from=4)}) as fleet:
        assert served(fleet) == clean
        assert [event.rank for event in fleet.events if event.kind == "wrong"] == [2]


def test_without_cross_checks_a_wrong_rank_is_seen_by_nobody(clean: dict[str, list[int]]) -> None:
    with Fleet(FleetSettings(**PATIENT), {2: Trouble(wrong_from=1)}) as fleet:
        served(fleet)
        assert fleet.events == []


def test_a_slow_rank_is_named_and_stays(clean: dict[str, list[int]]) -> None:
    with Fleet(FleetSettings(**PATIENT), {3: Trouble(slow_from=0, slow_seconds=0.5)}) as fleet:
        assert served(fleet) == clean
        assert [(event.kind, event.rank) for event in fleet.events] == [("slow", 3)]


def test_healthy_ranks_that_are_cross_checked_accuse_nobody(clean: dict[str, list[int]]) -> None:
    with Fleet(FleetSettings(**PATIENT, check_every=1)) as fleet:
        assert served(fleet) == clean
        assert fleet.events == []
