"""Audits of a live vLLM: healthy-looking steps are cloned between two steps, and judged in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.engine_shim.auditing import AuditSteps
from checkengine.engine_shim.vllm.lone_worker import OURS
from checkengine.replay.audit.auditor import NO_PRINTS
from checkengine.replay.bundle import write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.recorder import Recorder

logger = logging.getLogger("checkengine.vllm")

MODULE = "checkengine.engine_shim.vllm.audit_process"
MEMORY = Path("/dev/shm")
"""Memory-backed: an audited step touches no disk."""


class ProcessAuditor:
    """As `Auditor`, with the judge in another process, which holds a vLLM of its own: as much memory as the model needs
    once more. It starts with the first audit, runs at a low priority, and starts again where it died."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", MODULE), *, niceness: int = 15) -> None:
        self._command = list(command)
        self._niceness = niceness
        self._process: subprocess.Popen[str] | None = None

    def audit(self, capture: Capture, prints: Mapping[int, int] = NO_PRINTS) -> Verdict:
        """Raises CannotReplayError where the other process cannot tell."""
        with tempfile.TemporaryDirectory(prefix="checkengine-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
            path = write_bundle(capture, folder, content="full")
            asked = {"bundle": str(path), "prints": {str(handle): int(value) for handle, value in prints.items()}}
            answer = self._ask(json.dumps(asked))
        if "verdict" not in answer:
            raise CannotReplayError(f"the audit's process could not judge: {answer.get('error', 'it ended')}")
        return verdict_of(answer["verdict"])

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _ask(self, line: str) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            found: dict[str, Any] = json.loads(process.stdout.readline())
        except (OSError, ValueError):
            self.close()
            return {"error": "its process ended"}
        return found

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            environment = {name: value for name, value in os.environ.items() if name != OURS}
            command = ["nice", "-n", str(self._niceness), *self._command]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        return self._process


def verdict_of(told: Mapping[str, Any]) -> Verdict:
    return Verdict(
        VerdictKind(told["kind"]),
        told["sentence"],
        fault_class=None if told["fault_class"] is None else FaultClass(told["fault_class"]),
        sequence=told["sequence"],
        step=told["step"],
        layers=tuple(told["layers"]),
        replays_used=told["replays_used"],
    )


AuditMaker = Callable[[EngineAdapter, Recorder], AuditSteps]
"""The face says how findings of audits are told."""
