"""`python -m checkengine.replay.judge.fresh`: a fresh process that runs one step over and over; job in, bits out."""

from __future__ import annotations

import json
import sys
from typing import Any

from checkengine.guards.errors import UserError
from checkengine.replay.find_executor import find_executor
from checkengine.replay.judge.repeat import name_difference
from checkengine.replay.judge.wire import Job, unpack
from checkengine.replay.playback import Playback, all_bits


def run(job: Job) -> dict[str, Any]:
    """Bits of the first run, and what differs in later ones."""
    executor = find_executor(job.environment)
    playback = Playback(executor, job.window, fill=job.fill, hashes=True)
    *before, last = job.window.steps
    for step in before:
        playback.run(step)
    bits = all_bits(last, playback.run(last))
    different = []
    for _ in range(job.runs - 1):
        # It writes its own slots before it reads them: memory needs no renewal.
        again = all_bits(last, executor.run(last.replay, playback.memory, hashes=True))
        if again != bits:
            different.append(name_difference(bits, again))
    return {"bits": bits, "different": different}


def main() -> int:
    try:
        told: dict[str, Any] = run(unpack(sys.stdin.buffer.read()))
    except UserError as error:
        told = {"error": str(error)}
    sys.stdout.write(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
