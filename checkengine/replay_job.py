"""One replay in a process of its own, told line by line as JSON: `python -m checkengine.replay_job BUNDLE`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

TELL_SECONDS = 0.2
KERNELS = 2
"""The recorded kernel and the reference one are run over the whole window; what the judge runs is short beside them."""


def tell(told: dict[str, Any]) -> None:
    print(json.dumps(told, allow_nan=False, default=str), flush=True)


class Progress:
    """A kernel's steps, as a share of the whole; rarely enough that nobody waits for it."""

    def __init__(self) -> None:
        self._kernels: list[str] = []
        self._told = 0.0

    def __call__(self, kernel: str, done: int, steps: int) -> None:
        if kernel not in self._kernels:
            self._kernels.append(kernel)
        now, place = time.monotonic(), min(self._kernels.index(kernel), KERNELS - 1)
        if done >= steps and place == KERNELS - 1:
            tell({"words": "judging: fills, and repeats in fresh processes", "share": 0.6})
        elif now - self._told >= TELL_SECONDS:
            self._told = now
            share = 0.6 * (place + done / max(1, steps)) / KERNELS
            tell({"kernel": kernel, "done": done, "steps": steps, "share": share})


def main(path: Path, repeats: int) -> int:
    """Exit codes as of `checkengine replay`."""
    from checkengine.commands.replay import guarded, investigate_bundle, keep_result
    from checkengine.replay.report import result_json

    def run() -> int:
        tell({"words": "loading", "share": 0.0})
        found = investigate_bundle(path, progress=Progress(), repeats=repeats)
        keep_result(found, path)
        tell({"result": result_json(found)})
        return found.exit_code

    return guarded(run)


if __name__ == "__main__":
    from checkengine.guards.errors import UserError

    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("bundle", type=Path)
    asked = parser.parse_args()
    try:
        raise SystemExit(main(asked.bundle, asked.repeats))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
