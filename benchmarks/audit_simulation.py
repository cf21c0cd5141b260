"""How long does a fleet's audit take to meet a rare fault, under what budget?

The schedule is the real one, on records of simulated traffic. Faults are independent of it, so the chance that a faulty
step is convicted is the mean share of its possible victims that are audited; the day follows from that exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from checkengine.benchmarks.audit_traffic import Load, Traffic
from checkengine.replay.audit import AuditSchedule, Strata

FAULT_RATE = 1e-5
"""Of all steps."""
REPLICAS = 40
DAY = 86_400.0
WARM_UP = 4_000
"""Steps until lengths and blocks are no longer fresh."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the simulation assumes; `seconds_per_step` and `cost` are measured."""

    load: Load
    seconds_per_step: float
    cost: float
    """CPU seconds of one audit: capture and screen of `rows_per_audit` rows."""
    cpu_share: float
    rows_per_audit: int
    replicas: int = REPLICAS

    @property
    def audits_per_step(self) -> float:
        return self.cpu_share * self.seconds_per_step / self.cost

    @property
    def steps_per_day(self) -> float:
        return self.replicas * DAY / self.seconds_per_step


@dataclass(frozen=True, slots=True)
class Chances:
    """Of one step in which the fault strikes one row whose length is 1 modulo the block size."""

    stratified: float
    uniform: float
    steps_with_victims: float
    """Share of all steps that have such a row."""
    audits_per_step: float
    """As the schedule made them: rows that two strata draw at once are one audit."""


def simulate(fleet: Fleet, steps: int = 200_000, seed: int = 0) -> Chances:
    """Run the schedule with the fleet's pace. Rows that strike are drawn evenly among the step's victims."""
    schedule = AuditSchedule(
        Strata(fleet.load.block_size),
        Paced(fleet.audits_per_step),
        seed=seed,
        rows_per_audit=fleet.rows_per_audit,
    )
    met = with_victims = audits = 0.0
    for index, record in enumerate(Traffic(fleet.load, seed).records(WARM_UP + steps)):
        selection = schedule.choose(record)
        if selection is not None:
            schedule.judged(selection)
        if index < WARM_UP:
            continue
        victims = record.handles[victims_of(record.starts + record.query_lengths, record.query_lengths, fleet.load)]
        with_victims += len(victims) > 0
        audits += selection is not None
        if selection is not None and len(victims):
            met += len(set(victims.tolist()) & set(selection.handles)) / len(victims)
    share = with_victims / steps
    made = audits / steps
    uniform = made * min(1.0, fleet.rows_per_audit / fleet.load.rows)
    return Chances(met / with_victims, uniform, share, made)


class Paced:
    may_spend = True

    def __init__(self, per_step: float) -> None:
        self.per_step = per_step

    def step(self) -> None:
        """The pace is given."""

    def charge(self, seconds: float) -> None:
        """As is the cost."""


def victims_of(lengths: np.ndarray, query_lengths: np.ndarray, load: Load) -> np.ndarray:
    """Decoding rows whose length is 1 modulo the block size."""
    return np.flatnonzero((lengths % load.block_size == 1) & (query_lengths == 1))


def convicted_within(fleet: Fleet, chance: float, seconds: float = DAY, rate: float = FAULT_RATE) -> float:
    """Probability that a fault in `rate` of the steps is convicted within this time of the fleet's traffic."""
    return -math.expm1(fleet.steps_per_day * seconds / DAY * math.log1p(-rate * chance))


def hours_to(fleet: Fleet, chance: float, probability: float, rate: float = FAULT_RATE) -> float:
    steps = math.log1p(-probability) / math.log1p(-rate * chance)
    return 24 * steps / fleet.steps_per_day
