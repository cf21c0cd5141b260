"""`checkengine drill expert-loss`: ranks of an expert-parallel engine are killed at random; no request is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from checkengine.benchmarks.figure import figure
from checkengine.engine_shim.ranks import Fleet, FleetSettings, Trouble

REQUESTS, OUTPUT = 8, 160
SHORT = 40
"""Output tokens of the runs with other trouble than a kill."""
KILLS, QUICK_KILLS = 10, 2
MOST_SECONDS = 2.0
"""From the kill until the coordinator knows."""


def figures(*, quick: bool = False, kills: int | None = None) -> list[dict[str, Any]]:
    """`kills` is the benchmark's number; the drill's is smaller."""
    clean = run_clean()
    wanted = kills or (QUICK_KILLS if quick else KILLS)
    killed = kill_figures(clean, wanted)
    return killed if quick else [*killed, *trouble_figures(clean)]


def submit(fleet: Fleet, output: int = OUTPUT) -> None:
    for number in range(REQUESTS):
        fleet.submit(f"r{number}", [(number * 17 + index * 5) % 128 for index in range(8 + number)], output)


def run(fleet: Fleet) -> dict[str, list[int]]:
    while fleet.has_work:
        fleet.step()
    return {name: request.tokens for name, request in fleet.requests.items()}


def run_clean() -> dict[str, list[int]]:
    with Fleet(FleetSettings()) as fleet:
        submit(fleet)
        return run(fleet)


def kill_figures(clean: Mapping[str, list[int]], kills: int, seed: int = 0) -> list[dict[str, Any]]:
    """One rank after another, each at a random step and with a fresh spare behind it; served anew when all is done."""
    chance = random.Random(seed)
    detected: list[float] = []
    recovered: list[float] = []
    lost = equal = served = done = 0
    with Fleet(FleetSettings(spares=1)) as fleet:
        while done < kills:
            submit(fleet)
            while fleet.has_work and done < kills:
                for _ in range(chance.randrange(3, 20)):
                    if fleet.has_work:
                        fleet.step()
                if fleet.has_work and fleet.membership.spares:
                    seconds = kill_one(fleet, chance)
                    detected.append(seconds[0])
                    recovered.append(seconds[1])
                    fleet.add_spare()
                    done += 1
            answers = run(fleet)
            served += len(answers)
            lost += sum(name not in answers for name in clean)
            equal += sum(answers.get(name) == tokens for name, tokens in clean.items())
            fleet.requests.clear()
    middle, late = np.percentile(recovered, [50, 99])
    return [
        figure("expert-loss.requests lost", lost, f"of {served}, {kills} kills", 0),
        figure("expert-loss.answers equal to the undisturbed run's", equal / served, "share", 1, at_least=True),
        figure("expert-loss.kill to detection, slowest", max(detected), "s", MOST_SECONDS),
        figure("expert-loss.detection to the next step that counts, median", float(middle), "s", MOST_SECONDS),
        figure("expert-loss.the same, p99", float(late), "s", 2 * MOST_SECONDS),
    ]


def kill_one(fleet: Fleet, chance: random.Random) -> tuple[float, float]:
    """Seconds from the kill to its detection, and from there to the first step that counts."""
    known = len(fleet.events)
    at = fleet.kill(chance.choice(fleet.membership.ranks))
    while not any(event.kind == "lost" for event in fleet.events[known:]):
        fleet.step()
    noticed = next(event.at for event in fleet.events[known:] if event.kind == "lost")
    while not fleet.step():
        pass
    return noticed - at, time.monotonic() - noticed


TROUBLES: dict[str, tuple[Trouble, str, dict[str, Any]]] = {
    "hangs": (Trouble(hang_at=12), "lost", {}),
    "slow": (Trouble(slow_from=5, slow_seconds=0.3), "slow", {}),
    "flaps": (Trouble(flap_every=9), "payload", {}),
    "wrong": (Trouble(wrong_from=12), "wrong", {"check_every": 8}),
}
"""What one rank does, the kind of event that names it, and settings."""


@dataclass(frozen=True, slots=True)
class TroubleRun:
    named: bool
    """That rank, and nobody else."""
    equal: bool
    seconds: float


def trouble_run(name: str, clean: Mapping[str, list[int]]) -> TroubleRun:
    trouble, kind, options = TROUBLES[name]
    with Fleet(FleetSettings(**options), {2: trouble}) as fleet:
        submit(fleet, SHORT)
        began = time.monotonic()
        answers = run(fleet)
        told = {event.rank for event in fleet.events if event.kind == kind}
        equal = all(answers[name] == tokens[: len(answers[name])] for name, tokens in clean.items())
        return TroubleRun(told == {2}, equal, time.monotonic() - began)


def trouble_figures(clean: Mapping[str, list[int]]) -> list[dict[str, Any]]:
    """A rank that hangs, one that is slow, one whose link flaps and one that answers wrongly: named, answers kept."""
    runs = [trouble_run(name, clean) for name in TROUBLES]
    of = f"share of {len(runs)}: {', '.join(TROUBLES)}"
    named, equal = (sum(each) / len(runs) for each in ([r.named for r in runs], [r.equal for r in runs]))
    return [
        figure("expert-loss.ranks in other trouble named, nobody else", named, of, 1, at_least=True),
        figure("expert-loss.their answers equal", equal, of, 1, at_least=True),
        figure("expert-loss.a run with trouble", median(each.seconds for each in runs), "s", 60),
    ]
