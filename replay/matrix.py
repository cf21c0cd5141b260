"""One bundle on several hosts or devices: the same everywhere, other roundings, or a device that is wrong."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from checkengine.replay.executor import ReplayError
from checkengine.replay.investigate import CANNOT_JUDGE, DEFECTS, NOT_REPRODUCED, REPRODUCED
from checkengine.replay.judge.fault_class import Persistence
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.playback import all_bits
from checkengine.replay.replayer import Replay

SSH = "ssh {host} checkengine replay - --json --bits"
"""How a bundle is replayed on another host: it is the command's standard input."""
LOCAL = "local:"
TIMEOUT = 3600.0
"""Seconds for one host."""
AT_A_TIME = 8

Bits = dict[str, list[list[Any]]]
"""By step: [op, layer, row, fingerprint] of every involved row's op, and of its logits."""


@dataclass(slots=True)
class HostResult:
    host: str
    told: Mapping[str, Any] | None = None
    """The JSON of its replay."""
    error: str = ""

    @property
    def verdict(self) -> Mapping[str, Any]:
        return (self.told or {}).get("verdict") or {}

    @property
    def judged(self) -> bool:
        return bool(self.verdict)

    @property
    def repeats(self) -> bool:
        return self.judged and self.verdict["kind"] != VerdictKind.NONDETERMINISM

    @property
    def outcome(self) -> tuple[bool | None, bool, str | None]:
        """What is beyond numerics: does the finding fire, is it a defect, and of which class?"""
        told = self.told or {}
        convicted = self.verdict.get("kind") in [str(kind) for kind in DEFECTS]
        return told.get("reproduced"), convicted, self.verdict.get("fault_class") if convicted else None

    def to_dict(self) -> dict[str, Any]:
        told = {key: value for key, value in (self.told or {}).items() if key != "bits"}
        return {"host": self.host, "error": self.error, "result": told or None}


@dataclass(slots=True)
class Matrix:
    results: list[HostResult]
    kind: VerdictKind = VerdictKind.INCONCLUSIVE
    sentence: str = ""
    first_difference: dict[str, Any] | None = None
    """Of bits between two hosts: hosts, step, op, layer."""
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """As of one replay: 1 where the finding fires again on any host."""
        fired = [(result.told or {}).get("reproduced") for result in self.results]
        if any(fire is True for fire in fired) or any(result.outcome[1] for result in self.results):
            return REPRODUCED
        return NOT_REPRODUCED if all(result.judged for result in self.results) and self.results else CANNOT_JUDGE

    def to_dict(self) -> dict[str, Any]:
        persistence = Persistence.PERSISTENT if self.kind is VerdictKind.DEVICE_SPECIFIC else None
        return {
            "matrix": [result.to_dict() for result in self.results],
            "verdict": {"kind": str(self.kind), "sentence": self.sentence, "persistence": persistence},
            "first_difference": self.first_difference,
            "notes": self.notes,
        }


def bits_of(replay: Replay | None) -> Bits:
    """Of a hashed replay of the record, by step; empty where there is none."""
    if replay is None or replay.window is None or not replay.ran_hashed(replay.window):
        return {}
    steps = zip(replay.window.steps, replay.outputs, strict=True)
    return {str(step.number): [list(entry) for entry in all_bits(step, output)] for step, output in steps}


def run_matrix(hosts: Sequence[str], bundle: bytes, template: str = SSH) -> Matrix:
    """Replay an exported bundle on every host, several at a time. A host `local:NAME=VALUE,…` is this machine, with
    these variables set (another instruction set, another number of threads)."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        results = list(pool.map(lambda host: on_host(host, bundle, template), hosts))
    return compare(results)


def on_host(host: str, bundle: bytes, template: str) -> HostResult:
    command, variables = command_of(host, template)
    try:
        done = subprocess.run(
            command, input=bundle, capture_output=True, timeout=TIMEOUT, env={**os.environ, **variables}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return HostResult(host, error=f"{type(error).__name__}: {error}")
    try:
        told = json.loads(done.stdout)
    except ValueError:
        told = None
    if isinstance(told, dict):
        return HostResult(host, told)
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return HostResult(host, error=words[-1][:300] if words else f"it ended with code {done.returncode}")


def command_of(host: str, template: str) -> tuple[list[str], dict[str, str]]:
    """The command and the variables to set. ReplayError for a name that a command line would take for an option."""
    if host.startswith(LOCAL):
        pairs = [pair.partition("=") for pair in host.removeprefix(LOCAL).split(",") if pair]
        if any(not (name and equals) for name, equals, _ in pairs):
            raise ReplayError(f"--matrix {host}: give variables as local:NAME=VALUE,NAME=VALUE")
        return [sys.executable, "-m", "checkengine", "replay", "-", "--json", "--bits"], {n: v for n, _, v in pairs}
    if not host or host.startswith("-") or any(letter.isspace() for letter in host):
        raise ReplayError(f"--matrix {host!r} is no host's name")
    if "{host}" not in template:
        raise ReplayError(f"--matrix-command {template!r} has no {{host}} in it")
    return [part.replace("{host}", host) for part in shlex.split(template)], {}


def compare(results: Sequence[HostResult]) -> Matrix:
    matrix = Matrix(list(results))
    matrix.notes = [f"{result.host}: {result.error}" for result in results if result.error]
    judged = [result for result in results if result.judged]
    unstable = [result.host for result in judged if not result.repeats]
    if unstable:
        matrix.kind = VerdictKind.NONDETERMINISM
        matrix.sentence = f"on {', '.join(unstable)} the same step gives other bits from run to run"
        return matrix
    if len(judged) < 2:
        matrix.sentence = "fewer than two hosts could judge the bundle: there is nothing to compare"
        return matrix
    matrix.first_difference = first_difference(judged)
    told(matrix, judged)
    return matrix


def told(matrix: Matrix, judged: Sequence[HostResult]) -> None:
    outcomes = {result.host: result.outcome for result in judged}
    if len(set(outcomes.values())) > 1:
        matrix.kind = VerdictKind.DEVICE_SPECIFIC
        words = "; ".join(f"{host}: {in_words(outcome)}" for host, outcome in outcomes.items())
        matrix.sentence = f"each host repeats in itself, and they differ beyond rounding: {words}"
        return
    _, convicted, fault_class = next(iter(outcomes.values()))
    where = f"on all {len(judged)} hosts"
    if convicted:
        matrix.kind = VerdictKind.CODE_DEFECT
        matrix.sentence = f"the same defect {where} ({fault_class}): not a device's"
    elif matrix.first_difference is None:
        matrix.sentence = f"the same bits of every op {where}: nothing is device-specific"
    else:
        difference = matrix.first_difference
        matrix.sentence = (
            f"the same outcome {where}; bits differ first at step {difference['step']}, {difference['op']} of layer "
            f"{difference['layer']}, and no host goes beyond rounding"
        )


def in_words(outcome: tuple[bool | None, bool, str | None]) -> str:
    fires = {True: "the finding fires", False: "the finding does not fire", None: "not known whether it fires"}
    return f"{fires[outcome[0]]}, {f'a defect ({outcome[2]})' if outcome[1] else 'no defect'}"


def first_difference(judged: Sequence[HostResult]) -> dict[str, Any] | None:
    first, *others = judged
    own = (first.told or {}).get("bits") or {}
    for other in others:
        theirs = (other.told or {}).get("bits") or {}
        for step in sorted(own.keys() & theirs.keys(), key=int):
            for one, two in zip(own[step], theirs[step], strict=False):
                if one != two:
                    where = {"step": int(step), "op": one[0], "layer": one[1] if one[0] != "logits" else -1}
                    return {"hosts": [first.host, other.host], **where}
    return None
