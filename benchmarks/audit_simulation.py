"""How long does a fleet's audit take to meet a rare fault, under what budget?

Schedule and budget are the real ones, on a simulated clock and on records of simulated traffic. Faults are independent
of them, so the chance that a faulty step is convicted is the mean share of its possible victims that are audited; what
a day of 40 replicas finds follows from that exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkengine.benchmarks.audit_cost import Costs
from checkengine.benchmarks.audit_traffic import Load, Traffic
from checkengine.replay.audit import AuditSchedule, CpuBudget, Selection, Strata
from checkengine.replay.record import StepRecord

FAULT_RATE = 1e-5
"""Of all steps."""
REPLICAS, DAY = 40, 86_400.0
WARM_UP = 4_000
"""Steps until lengths and blocks are no longer fresh."""


@dataclass(frozen=True, slots=True)
class Chances:
    """Of one step in which the fault strikes one row whose length is 1 modulo the block size."""

    stratified: float
    uniform: float
    """With as many audits of as many rows, drawn at random."""
    with_victims: float
    """Share of all steps that have such a row."""
    audits_per_step: float
    seconds_per_step: float
    cpu_share: float
    """As spent."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def simulate(costs: Costs, cpu_share: float, rows_per_audit: int, load: Load, steps: int, seed: int = 0) -> Chances:
    """One replica's steps. The row that is struck is drawn evenly among the step's victims."""
    clock = Clock()
    budget = CpuBudget(cpu_share, clock=clock)
    schedule = AuditSchedule(Strata(load.block_size), budget, seed=seed, rows_per_audit=rows_per_audit)
    met, with_victims, audits = 0.0, 0, 0
    for index, record in enumerate(Traffic(load, seed).records(WARM_UP + steps)):
        if index == WARM_UP:
            began, spent = clock.now, budget.spent
        clock.now += costs.step.at(len(record.token_ids))
        selection = schedule.choose(record)
        if selection is not None:
            schedule.judged(selection)
            budget.charge(cost_of(selection, record, costs))
        if index >= WARM_UP:
            victims = victims_of(record, load)
            with_victims += len(victims) > 0
            audits += selection is not None
            met += met_by(selection, victims)
    wall = clock.now - began
    uniform = audits / steps * min(1.0, rows_per_audit / load.rows)
    return Chances(
        met / with_victims, uniform, with_victims / steps, audits / steps, wall / steps, (budget.spent - spent) / wall
    )


def cost_of(selection: Selection, record: StepRecord, costs: Costs) -> float:
    """A chunk that does not sample is compared with itself: two runs."""
    rows = np.isin(record.handles, selection.handles)
    return costs.audit.at(len(record.token_ids)) * (1 if record.samples[rows].all() else 2)


def met_by(selection: Selection | None, victims: NDArray[np.int32]) -> float:
    if selection is None or not len(victims):
        return 0.0
    return len(set(victims.tolist()) & set(selection.handles)) / len(victims)


def victims_of(record: StepRecord, load: Load) -> NDArray[np.int32]:
    """Decoding rows whose length is 1 modulo the block size."""
    lengths = record.starts + record.query_lengths
    victims: NDArray[np.int32] = record.handles[(lengths % load.block_size == 1) & (record.query_lengths == 1)]
    return victims


def steps_per_day(chances: Chances) -> float:
    return REPLICAS * DAY / chances.seconds_per_step


def convicted_within_a_day(chances: Chances, chance: float) -> float:
    """Probability that a fault in `FAULT_RATE` of the steps is convicted within a day of the fleet's traffic."""
    return -math.expm1(steps_per_day(chances) * math.log1p(-FAULT_RATE * chance))


def median_hours(chances: Chances, chance: float) -> float:
    return 24 * math.log(0.5) / math.log1p(-FAULT_RATE * chance) / steps_per_day(chances)
