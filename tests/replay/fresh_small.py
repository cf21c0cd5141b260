"""The small engine's executor as a fresh process finds it: from the record's environment alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from small_engine import SmallExecutor, SmallFault, SmallModel

from checkengine.replay.executor import OpHash, ReplayStep, StepOutput

ENGINE = "fresh-small"
ENTRY_POINTS = f"[checkengine.executors]\n{ENGINE} = fresh_small:FreshSmallExecutor\n"


class FreshSmallExecutor(SmallExecutor):
    """`by_process` in the environment: the last layer's hashes depend on the process, as an address does."""

    def __init__(self) -> None:
        super().__init__(SmallModel(), SmallFault())
        self.by_process = False

    def load(self, environment: Mapping[str, Any]) -> None:
        self.fault = SmallFault(**environment.get("fault", {}))
        self.by_process = bool(environment.get("by_process"))

    def run(self, step: ReplayStep, memory: Any, *, kernel: str | None = None, hashes: bool = False) -> StepOutput:
        output = super().run(step, memory, kernel=kernel, hashes=hashes)
        if self.by_process:
            output.hashes = [_marked(entry) if entry.layer == 1 else entry for entry in output.hashes]
        return output


def _marked(entry: OpHash) -> OpHash:
    return replace(entry, fingerprint=entry.fingerprint ^ os.getpid())


def install(folder: Path) -> str:
    """What PYTHONPATH must hold for a fresh process to find the executor; written into `folder`."""
    metadata = folder / "fresh_small-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fresh-small\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return os.pathsep.join((str(folder), str(Path(__file__).parent)))
