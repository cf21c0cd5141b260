"""A pool of processes on this machine, one bundle each: a process that is killed costs its bundle another try."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from checkengine.fanning.ledger import WORDS, Ledger
from checkengine.fanning.schedulers import OPTIONS

TRIES = 4
MOST_OUTPUT = 16 << 20

Command = Callable[[str], Sequence[str]]


def replay_command(store: str) -> Command:
    """`checkengine replay` of one bundle by name."""
    return lambda name: [sys.executable, "-m", "checkengine", "replay", f"{store.rstrip('/')}/{name}", *OPTIONS]


def run_all(names: Sequence[str], command: Command, ledger: Ledger, workers: int) -> dict[str, int]:
    """Replay every bundle that has no result yet, and return the number of bundles by outcome, earlier ones included.

    A process that ends by a signal, or with a code that `replay` does not give, is run again up to TRIES times; then
    the bundle is settled as failed, with the last words of the process.
    """
    waiting = [name for name in names if not ledger.has(name)]
    with ThreadPoolExecutor(workers) as pool:
        tasks = [pool.submit(settle, name, command(name), ledger) for name in waiting]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return ledger.counts()


def settle(name: str, command: Sequence[str], ledger: Ledger) -> None:
    for left in reversed(range(TRIES)):
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
        if done.returncode in WORDS or left == 0:
            ledger.settle(name, done.returncode, told(done))
            return


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """The verdict that the process printed, else its last words."""
    try:
        value = json.loads(done.stdout[:MOST_OUTPUT])
    except ValueError:
        value = None
    if isinstance(value, dict):
        return {"verdict": value.get("verdict"), "reproduced": value.get("reproduced")}
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return {"verdict": None, "error": lines[-1][:500] if lines else ""}
