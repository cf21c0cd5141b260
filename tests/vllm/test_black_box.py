"""Record in one vLLM process, replay in another, and convict a planted over-read of vLLM's own CPU kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def told(command: list[str], environment: dict[str, str], codes: tuple[int, ...] = (0,)) -> tuple[int, Any]:
    """Exit code and the last line as JSON."""
    given = {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
    given.pop("CHECKENGINE_VLLM", None)
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=given, timeout=900)
    assert done.returncode in codes, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def recorded(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("bundles")
    return folder, told([str(HERE / "black_box_run.py"), str(folder)], environment)[1]


def test_a_window_in_mid_stream_replays_bit_for_bit_in_a_fresh_process_and_a_faulty_one_only_with_its_fault(
    recorded: tuple[Path, dict[str, Any]], environment: dict[str, str]
) -> None:
    folder, run = recorded
    _, replays = told(["-m", "checkengine.benchmarks.vllm_replay", str(folder)], environment)
    by_name = dict(zip(sorted(path.name for path in folder.iterdir() if path.is_dir()), replays, strict=True))
    healthy, faulty = by_name[run["healthy"]], by_name[run["faulty"]]
    assert healthy["exact"], healthy["words"]
    assert healthy["first_step"] >= 200
    # The kernel here is right: at the step of the over-read it gives other bits than the record.
    assert not faulty["exact"]
    assert "first other fingerprint" in faulty["words"]
