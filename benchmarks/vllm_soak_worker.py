"""A vLLM worker with a black box that writes into a folder; vLLM loads the class by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import vllm
from vllm.v1.worker.cpu_worker import CPUWorker

from checkengine.engine_shim.vllm.black_box import BlackBox
from checkengine.engine_shim.vllm.messages import from_record, installed_types, to_record
from checkengine.engine_shim.vllm.worker import Observer, ObservingWorker
from checkengine.replay.bundle import write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.settings import CaptureSettings, RecorderSettings

FOLDER = "CHECKENGINE_SOAK_FOLDER"
WRITTEN: list[Path] = []


def write(capture: Capture) -> bool:
    WRITTEN.append(write_bundle(capture, os.environ[FOLDER], content="full"))
    return True


class CheckingBox(BlackBox):
    """Every message of vLLM's must come back from JSON as it was."""

    messages = 0
    unlike: list[str]

    def before_step(self, worker: Any, scheduler_output: Any) -> None:
        told = json.loads(json.dumps(to_record(scheduler_output, vllm.__version__)))
        self.messages += 1
        if (again := from_record(told, TYPES)) != scheduler_output:
            self.unlike.append(repr(again)[:500])
        super().before_step(worker, scheduler_output)


TYPES = installed_types()
BOX = CheckingBox(write, RecorderSettings(undo_bytes=512 << 20), CaptureSettings(per_fault=100_000))


BOX.unlike = []


class RecordingWorker(ObservingWorker, CPUWorker):  # type: ignore[misc]
    def make_observer(self) -> Observer:
        return Observer("full", [BOX])


"""The black box is the process's own: the soak and its worker run in one."""
