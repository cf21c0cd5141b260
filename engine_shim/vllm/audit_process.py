"""Judges captures in a process of its own: `python -m checkengine.engine_shim.vllm.audit_process`.

Reads lines of JSON, each the path of an encrypted bundle in memory-backed storage, and answers each with a verdict. The
bundle is erased by whoever asked. vLLM starts with the first one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

from checkengine.replay.audit import Auditor
from checkengine.replay.bundle import BundleReader
from checkengine.replay.find_executor import find_executor
from checkengine.replay.judge.verdict import Verdict


def main() -> None:
    answers = answers_only()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def answers_only() -> TextIO:
    """Standard output as it was; what vLLM prints goes to standard error from here on."""
    kept = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return kept


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        capture = BundleReader(asked["bundle"], purpose="audit").capture()
        prints = {int(handle): int(value) for handle, value in asked["prints"].items()}
        return {"verdict": told(Auditor(find_executor(capture.environment)).audit(capture, prints))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def told(verdict: Verdict) -> dict[str, Any]:
    """What a `Verdict` is made again from, numbers and names only."""
    return {
        "kind": str(verdict.kind),
        "sentence": verdict.sentence,
        "sequence": verdict.sequence,
        "step": verdict.step,
        "fault_class": verdict.fault_class and str(verdict.fault_class),
        "layers": list(verdict.layers),
        "replays_used": verdict.replays_used,
    }


if __name__ == "__main__":
    main()
