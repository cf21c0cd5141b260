"""Series of measurements: what is told, as what, and where."""

from __future__ import annotations

import math

import numpy as np
import pytest

from checkengine.guards.drift import DriftGuard, SeriesDriftGuard
from checkengine.guards.finding import Severity, cause_rank
from checkengine.guards.settings import DriftSettings

SETTINGS = DriftSettings(series=4)


def moved(seed: int, before: int = 1500, after: int = 300, by: float = 2.0) -> list[float]:
    random = np.random.default_rng(seed)
    return [*random.normal(size=before).tolist(), *random.normal(by, 1, after).tolist()]


def test_a_series_that_moves_is_told_once_with_its_numbers() -> None:
    guard, told = DriftGuard(SETTINGS), []
    for index, value in enumerate(moved(0)):
        told += guard.update("entropy", 1000.0 + index, value)
    (finding,) = told
    assert (finding.kind, finding.id, finding.severity) == ("drift.entropy", "entropy", Severity.WARNING)
    assert 2500 <= finding.at["t"] < 2600
    assert finding.evidence["change"] == "level"
    assert finding.evidence["log_evidence"] >= math.log(SETTINGS.requests_per_false_alarm * 4) - 0.01
    assert abs(float(finding.evidence["values_before"]) - 1500) < 20
    assert float(finding.evidence["median_recent"]) > float(finding.evidence["median_before"])
    assert finding.rank == cause_rank("drift")


def test_an_input_series_is_reported_and_alarms_nobody() -> None:
    (finding,) = DriftGuard(SETTINGS).update("prompt_length", None, moved(0))
    assert finding.severity is Severity.INFO


def test_values_in_one_call_are_told_as_values_one_by_one() -> None:
    values = moved(1)
    together, alone = SeriesDriftGuard("margin", SETTINGS), SeriesDriftGuard("margin", SETTINGS)
    expected = together.push_many(values)
    told = [finding for value in values for finding in alone.push(value)]
    assert [finding.at for finding in told] == [finding.at for finding in expected]
    assert told[0].evidence["log_evidence"] == expected[0].evidence["log_evidence"]
    assert list(together.end()) == []


def test_an_output_is_judged_given_its_input() -> None:
    """Long prompts have short answers, and come more and more: no drift; the same answers by themselves drift."""
    random = np.random.default_rng(2)
    long = random.random(8000) < np.linspace(0.1, 0.9, 8000)
    prompts = np.where(long, 4000 + random.integers(0, 500, 8000), 100 + random.integers(0, 50, 8000)).astype(float)
    answers = random.normal(size=8000) + 3.0 * long
    assert DriftGuard(SETTINGS).update("completion_length", None, answers.tolist(), prompts.tolist()) == []
    assert DriftGuard(SETTINGS).update("completion_length", None, answers.tolist())
    answers[6000:] += 1.0
    told = DriftGuard(SETTINGS).update("completion_length", None, answers.tolist(), prompts.tolist())
    assert 6000 <= told[0].at["t"] < 6500


@pytest.mark.parametrize("values", [("stop", "length"), (True, False)])
def test_names_and_booleans_are_judged_by_their_shares(values: tuple[str, str] | tuple[bool, bool]) -> None:
    random = np.random.default_rng(3)
    drawn = np.concatenate([random.random(2000) < 0.03, random.random(1500) < 0.3])
    (finding,) = DriftGuard(SETTINGS).update("finish_reason", None, [values[int(each)] for each in drawn])
    assert finding.evidence["change"] == "category"
    assert 2000 <= finding.at["t"] < 2400
    assert not any(isinstance(value, str) and value in ("stop", "length") for value in finding.evidence.values())


def test_values_of_the_wrong_sort_are_passed_over() -> None:
    guard = DriftGuard(SETTINGS)
    assert guard.update("entropy", None, [1.0, "stop", float("nan"), 2.0]) == []
    assert guard.update("finish", None, ["stop", 1.0, "length"]) == []
    assert guard.update("entropy", None, []) == []
    given = SeriesDriftGuard("length", SETTINGS)
    given.push(1.0, given=10.0)
    assert list(given.push(1.0)) == []


def test_series_beyond_the_settings_are_counted_and_not_followed() -> None:
    guard = DriftGuard(SETTINGS)
    for number in range(4):
        guard.update(f"s{number}", None, 0.0)
    assert guard.update("one too many", None, [0.0] * 10) == []
    assert guard.unfollowed == 10


def test_state_stays_within_4_kib_whatever_the_traffic() -> None:
    random = np.random.default_rng(4)
    values = random.normal(size=100_000).tolist()
    guards = [DriftGuard(DriftSettings()) for _ in range(3)]
    guards[0].update("a", None, values)
    guards[1].update("a", None, values, np.abs(values).tolist())
    guards[2].update("a", None, [f"name{number % 500}" for number in range(20_000)])
    assert [guard.state_bytes <= 4096 for guard in guards] == [True] * 3
