"""Processes that are killed while they capture: is every bundle whole or refused, and is every trigger accounted for?

A life is a forked process in which findings come faster than bundles are written. It tells of each trigger, clone and
write over a pipe, and is killed after a random number of those signs. What it told is held against what is on the disk.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.bundle_samples import BLOCK_SIZE, HEADS, LAYERS, decode
from checkengine.engine_shim.adapter import Capabilities, StopOnly
from checkengine.engine_shim.bundles import BundleWriter
from checkengine.engine_shim.capturing import CaptureOnFinding
from checkengine.guards.bus import EventBus
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.incident import IncidentBook
from checkengine.replay.bundle import BundleError, BundleReader, bundles_in, remove
from checkengine.replay.bundle import files as files_module
from checkengine.replay.bundle import write as write_module
from checkengine.replay.bundle.draft import remove_leftovers
from checkengine.replay.capture import Capture
from checkengine.replay.memory import MemoryImage
from checkengine.replay.record import BlockTables
from checkengine.replay.recorder import Recorder
from checkengine.replay.settings import CaptureSettings

ROWS, STEPS, WAITING = 3, 30, 2
PATIENCE = 0.7
"""Share of the steps that wait for a bundle; in the others findings come faster than bundles are written."""
MOST_SIGNS = 100
UNKILLED = 10
"""Of so many lives one comes to its end: then nothing at all may be missing."""
TIMEOUT = 60.0


@dataclass(slots=True)
class Crashes:
    lives: int = 0
    killed: int = 0
    triggers: int = 0
    dropped: int = 0
    committed: int = 0
    torn: int = 0
    lost_in_memory: int = 0
    """Triggers whose capture had not reached the disk when the process died."""
    unsound: list[str] = field(default_factory=list)
    """What must not be: a bundle that does not verify, a torn one that is taken for whole, a wrong count."""
    seconds: float = 0.0


class SampleAdapter(StopOnly):
    """Counts its clones."""

    capabilities = Capabilities(snapshot=True)

    def __init__(self) -> None:
        self.clones = 0

    def environment(self) -> dict[str, Any]:
        return {"engine": "sample", "block_size": BLOCK_SIZE}

    def snapshot(self, blocks: np.ndarray[Any, np.dtype[np.int32]]) -> MemoryImage:
        self.clones += 1
        shape = (len(blocks), LAYERS, BLOCK_SIZE, HEADS, 8)
        tensors = {name: torch.zeros(shape) for name in ("kv.key", "kv.value")}
        return MemoryImage(BLOCK_SIZE, blocks, tensors, {"kv": range(LAYERS)})


def live(directory: Path, told: Connection) -> None:
    """Capture until killed, or for STEPS steps."""
    lock, adapter, recorder = threading.Lock(), SampleAdapter(), Recorder(64, 1 << 20)
    done, patience = threading.Event(), random.Random(os.getpid())
    real_write = files_module.write_durably

    def tell(*words: Any) -> None:
        with lock:
            told.send(words)

    settings = CaptureSettings(directory=directory, content="full", maximum_bundles=10**6)
    writer = BundleWriter(settings, EventBus(), IncidentBook())

    def write_durably(path: Path, data: bytes) -> None:
        tell("file")
        real_write(path, data)

    def write(capture: Capture) -> bool:
        tell("begun")
        written = writer.write(capture)
        tell("written", written)
        done.set()
        return written

    setattr(write_module, "write_durably", write_durably)  # noqa: B010

    captures = CaptureOnFinding(
        adapter,
        recorder,
        write,
        incident_of=lambda sequence: sequence,
        window_steps=4,
        waiting=WAITING,
        counts=writer.counts,
    )
    handles = np.arange(ROWS, dtype=np.int32)
    blocks = 2 + STEPS // BLOCK_SIZE + 1
    tables = BlockTables(handles, np.full(ROWS, blocks, np.int32), np.arange(ROWS * blocks, dtype=np.int32))
    for step in range(STEPS):
        record = decode(step, handles, tables)
        recorder.begin(record)
        record.sampled = handles
        recorder.finish(step, np.zeros(ROWS, np.uint64), handles)
        captures._captured.clear()  # every step is an incident of its own
        tell("trigger")
        captures.step_done(record, [Finding("drill", "s0", Severity.WARNING, step, 0, "drill")], [])
        tell("counted", captures.dropped, adapter.clones)
        if patience.random() < PATIENCE:
            done.wait(TIMEOUT)
            done.clear()
    captures.close()
    tell("closed", dict(writer.counts.outcomes()), adapter.clones)


def crash(directory: Path, lives: int, seed: int = 0) -> Crashes:
    """In this process, which must have no threads: it forks."""
    found, chance, began = Crashes(), random.Random(seed), time.monotonic()
    for number in range(lives):
        signs = 0 if number % UNKILLED == UNKILLED - 1 else chance.randrange(1, MOST_SIGNS)
        words = one_life(directory, signs)
        found.lives += 1
        found.killed += signs > 0
        settle(directory, words, found, killed=signs > 0)
    found.seconds = time.monotonic() - began
    return found


def one_life(directory: Path, signs: int) -> list[tuple[Any, ...]]:
    """Everything that it told. `signs`: it is killed after so many; 0: it comes to its end."""
    ours, theirs = Pipe(duplex=False)
    child = os.fork()
    if not child:
        ours.close()
        try:
            live(directory, theirs)
        finally:
            os._exit(0)
    theirs.close()
    words = []
    for word in received(ours):
        words.append(word)
        if signs and len(words) == signs:
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return words


def received(pipe: Connection) -> Iterator[tuple[Any, ...]]:
    try:
        while pipe.poll(TIMEOUT):
            yield pipe.recv()
    except (EOFError, OSError):
        return
    raise TimeoutError("a life hangs")


def settle(directory: Path, words: list[tuple[Any, ...]], found: Crashes, *, killed: bool) -> None:
    """Hold what was told against the disk, and sweep."""
    fresh = {path.name for path in bundles_in(directory)}
    found.unsound += [reason for name in fresh if (reason := fault_of(directory / name))]
    drafts = list(directory.glob(".writing-*"))
    found.unsound += [
        f"a torn bundle is taken for one: {path.name}" for path in drafts if path in bundles_in(directory)
    ]
    if remove_leftovers(directory, fresh=0.0) != len(drafts) or list(directory.glob(".writing-*")):
        found.unsound.append("torn bundles were not swept")
    count(words, len(fresh), len(drafts), found, killed)
    for name in fresh:  # every writer looks through all that is there
        remove(directory / name)


def fault_of(bundle: Path) -> str:
    try:
        BundleReader(bundle).verify()
    except BundleError as error:
        return f"a committed bundle does not verify: {error}"
    return ""


def count(words: list[tuple[Any, ...]], committed: int, torn: int, found: Crashes, killed: bool) -> None:
    """Every trigger was cloned or dropped; every clone that reached the writer is a bundle, or torn."""
    tally = Counter(word[0] for word in words)
    triggers = dropped = clones = 0
    for word in words:
        triggers += word[0] == "trigger"
        if word[0] == "counted":
            _, dropped, clones = word
            if triggers != dropped + clones:
                found.unsound.append(f"{triggers} triggers, {dropped} dropped, {clones} cloned")
    waits = clones - tally["begun"]
    right = [
        tally["written"] <= committed <= tally["begun"],
        tally["begun"] - 1 <= committed + torn <= tally["begun"],
        -1 <= waits <= WAITING,
    ]
    if not killed:
        _, outcomes, clones = words[-1]
        right += [words[-1][0] == "closed", outcomes["written"] == committed == clones, torn == 0]
        right += [outcomes["written"] + outcomes["dropped"] == triggers]
    if not all(right):
        found.unsound.append(f"{dict(tally)}, {committed} committed, {torn} torn, {waits} waiting: {right}")
    found.triggers += triggers
    found.dropped += dropped
    found.committed += committed
    found.torn += torn
    found.lost_in_memory += triggers - dropped - committed - torn


def crash_in_process(lives: int, seed: int = 0) -> Crashes:
    """In a process of its own, since this one may have threads."""
    # A killed process leaves what it wrote to the system: memory will do for a disk, and is quicker.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CHECKENGINE_STATE": f"{folder}/state"}
        command = [sys.executable, "-m", "checkengine.benchmarks.bundle_crashes", folder, str(lives), str(seed)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the crashes could not be run: {done.stderr[-2000:]}")
    return Crashes(**json.loads(done.stdout))


def main() -> None:
    torch.set_num_threads(1)
    directory = Path(sys.argv[1]) / "bundles"
    directory.mkdir()
    print(json.dumps(asdict(crash(directory, int(sys.argv[2]), int(sys.argv[3])))))


if __name__ == "__main__":
    main()
