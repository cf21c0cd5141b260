"""The sampled audit at honest rates, and the re-score: what each finds, and what the audit costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from checkengine.benchmarks.audit_cost import ROWS, measure_costs
from checkengine.benchmarks.audit_simulation import convicted_within_a_day, median_hours, simulate
from checkengine.benchmarks.audit_soak import soak
from checkengine.benchmarks.audit_traffic import Load, Traffic
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.rescore import rescore_figures
from checkengine.replay.audit import AuditSchedule, CpuBudget, Strata
from checkengine.replay.settings import AuditSettings

SOAK_SECONDS = 900.0


def audit_figures(*, soak_seconds: float = SOAK_SECONDS) -> Iterator[dict[str, Any]]:
    """A quarter of an hour, most of it the soak. Outputs for the re-score are generated at the first run."""
    yield from schedule_figures()
    yield from fleet_figures()
    yield from rescore_figures()
    yield from soak_figures(soak_seconds)


def schedule_figures(rows: int = 256, steps: int = 1500) -> list[dict[str, Any]]:
    """CPU time of the schedule on the step's thread, a step of 256 rows."""
    schedule = AuditSchedule(Strata(16), CpuBudget(1e-6), seed=0)
    spent = []
    for record in list(Traffic(Load(rows=rows, block_size=16)).records(steps)):
        before = time.thread_time()
        schedule.choose(record)
        spent.append(time.thread_time() - before)
    return [figure("audit.schedule_per_step", 1e6 * float(np.median(spent)), "us", 60.0)]


def fleet_figures(audits: int = 6, steps: int = 300_000) -> list[dict[str, Any]]:
    """A fault in 1 of 10^5 steps, at lengths that are 1 modulo the block size, on 40 replicas for a day."""
    default = AuditSettings()
    costs = measure_costs(audits, default.rows)
    found = simulate(costs, default.cpu_share, default.rows, Load(), steps)
    day, plain = (convicted_within_a_day(found, chance) for chance in (found.stratified, found.uniform))
    hours, plain_hours = (median_hours(found, chance) for chance in (found.stratified, found.uniform))
    # Armed in 1 of 10^5 steps, whether or not the step has a row that it can strike.
    armed = median_hours(found, found.stratified * found.with_victims)
    uniform = "uniform sampling"
    return [
        figure("audit.cost", costs.audit.at(ROWS), "CPU s", 1.0, peer=("a step, s", costs.step.at(ROWS))),
        figure("audit.clean_convictions", costs.convicted, "audits", 0, peer=("audits", costs.audits)),
        figure("audit.cpu_share", found.cpu_share, "of a core", 1.1 * default.cpu_share),
        figure("audit.convicted_in_a_day", day, "probability", 0.95, at_least=True, peer=(uniform, plain)),
        figure("audit.hours_to_conviction", hours, "h, median", 24.0, peer=(uniform, plain_hours)),
        figure("audit.hours_to_conviction, armed at 10^-5", armed, "h, median", 24.0),
    ]


def soak_figures(most_seconds: float) -> list[dict[str, Any]]:
    """On the embedded engine with a tiny model; half a core for the audit, since a minute has to do for a day."""
    found = soak(most_seconds=most_seconds)
    return [
        figure(
            "audit.soak_convicted", found.convicted, "fault of 10^-5", 1, at_least=True, peer=("steps", found.steps)
        ),
        figure("audit.soak_seconds", found.seconds, "s", most_seconds, peer=("steps struck", found.struck)),
        figure("audit.soak_false_convictions", found.wrongly, "audits", 0, peer=("audits", found.audits)),
    ]
