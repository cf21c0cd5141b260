"""Windows of random traffic in a real vLLM, captured as bundles and replayed in fresh processes, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checkengine.benchmarks.figure import figure
from checkengine.guards.errors import UserError

LATE = 200
SOAK, REPLAY = "checkengine.benchmarks.vllm_soak", "checkengine.benchmarks.vllm_replay"


def vllm_replay_figures(windows: int = 10, seed: int = 0) -> list[dict[str, Any]]:
    """Three engine starts: two record (with and without async scheduling), one replays. UserError without vLLM."""
    from importlib.util import find_spec

    if (found := find_spec("vllm")) is None or found.origin is None:
        raise UserError("bench vllm-replay needs vLLM in this environment: make vllm-setup, then run it from there")
    with tempfile.TemporaryDirectory(prefix="checkengine-") as folder:
        traffic = [
            run(SOAK, folder, "--windows", str(count), "--seed", str(seed + index), *flags)
            for index, (count, flags) in enumerate([(windows - windows // 2, []), (windows // 2, ["--asynchronous"])])
            if count
        ]
        found = run(REPLAY, folder)
    late = [window for window in found if window["first_step"] >= LATE]
    return [
        figure(
            "vllm_replay.windows_bit_exact", sum(window["exact"] for window in found), "windows", windows, at_least=True
        ),
        figure(
            "vllm_replay.late_windows_bit_exact", sum(w["exact"] for w in late), "windows", windows / 2, at_least=True
        ),
        figure("vllm_replay.steps", sum(window["steps"] for window in found), "steps", windows, at_least=True),
        figure("vllm_replay.rows", sum(window["rows"] for window in found), "rows", windows, at_least=True),
        *(figure(f"vllm_replay.{name}", sum(t[name] for t in traffic), name, 1, at_least=True) for name in traffic[0]),
    ]


def run(module: str, *arguments: str) -> Any:
    """What a process told in its last line."""
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, env=environment, timeout=3600
    )
    if done.returncode:
        raise RuntimeError(f"{module} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def replayed(folder: Path) -> list[dict[str, Any]]:
    """One engine for all bundles; each on memory of its own."""
    from checkengine.replay.bundle import BundleReader
    from checkengine.replay.find_executor import find_executor
    from checkengine.replay.replayer import Replayer

    found = []
    for path in sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")):
        capture = BundleReader(path).capture()
        replay = Replayer(find_executor(capture.environment), capture).replay()
        found.append(
            {
                "first_step": replay.from_step,
                "exact": replay.bit_exact and replay.exact_from == "undo",
                "steps": replay.steps,
                "rows": replay.rows,
                "words": replay.words(),
            }
        )
        print(path.name, replay.words(), file=sys.stderr)
    return found


if __name__ == "__main__":
    print(json.dumps(replayed(Path(sys.argv[1]))))
