"""A process that writes bundles until it is killed. It tells of each file before it is written, by one byte, and of
each bundle that `write_bundle` returned, by its name."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import torch

torch.set_num_threads(1)

from naive_engine import served  # noqa: E402

from checkengine.replay.bundle import DeploymentKey  # noqa: E402
from checkengine.replay.bundle import write as write_module  # noqa: E402
from checkengine.replay.capture import Capture, new_identifier  # noqa: E402

ENGINE, SEQUENCE = served(2, steps=10)


def capture() -> Capture:
    taken = ENGINE.capture(SEQUENCE)
    taken.identifier = new_identifier()
    return taken


def write_until_killed(directory: Path, told: Connection) -> None:
    real_write, real_sync = write_module.write_durably, write_module.sync_directory

    def write_durably(path: Path, data: bytes) -> None:
        told.send("")
        real_write(path, data)

    def sync_directory(path: Path) -> None:
        told.send("")
        real_sync(path)

    write_module.write_durably, write_module.sync_directory = write_durably, sync_directory
    while True:
        told.send(write_module.write_bundle(capture(), directory, content="full", key=DeploymentKey(bytes(32))).name)
