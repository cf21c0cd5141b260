"""A vLLM worker with a black box that writes into a folder; vLLM loads the class by name."""

from __future__ import annotations

import os
from pathlib import Path

from vllm.v1.worker.cpu_worker import CPUWorker

from checkengine.engine_shim.vllm.black_box import BlackBox
from checkengine.engine_shim.vllm.worker import Observer, ObservingWorker
from checkengine.replay.bundle import write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.settings import CaptureSettings, RecorderSettings

FOLDER = "CHECKENGINE_SOAK_FOLDER"
WRITTEN: list[Path] = []


def write(capture: Capture) -> bool:
    WRITTEN.append(write_bundle(capture, os.environ[FOLDER], content="full"))
    return True


BOX = BlackBox(write, RecorderSettings(undo_bytes=512 << 20), CaptureSettings(per_fault=100_000))


class RecordingWorker(ObservingWorker, CPUWorker):  # type: ignore[misc]
    def make_observer(self) -> Observer:
        return Observer("full", [BOX])


"""The black box is the process's own: the soak and its worker run in one."""
