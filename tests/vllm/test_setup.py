"""The environment: what installing checkengine beside vLLM changes, and what it does before it is asked. No engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

UNINSTALLED = ("torchaudio", "torchcodec", "torchvision")
"""By us: PyPI's are built against another torch than vLLM's."""


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **variables}
    return subprocess.run([sys.executable, *command], env=given, capture_output=True, text=True, timeout=300)


def test_no_requirement_of_vllm_is_broken_by_checkengine() -> None:
    complaints = run("-m", "pip", "check").stdout.splitlines()
    foreign = [line for line in complaints if not any(f"requires {name}" in line for name in UNINSTALLED)]
    assert [line for line in foreign if line != "No broken requirements found."] == []


def test_checkengine_asks_for_nothing_that_would_change_a_package_of_this_environment() -> None:
    planned = run(
        *("-m", "pip", "install", "--dry-run", "--quiet", "--no-index", "--no-build-isolation", "--report", "-"),
        "checkengine",
    )
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["install"] == []


SHOW = """
from vllm.engine.arg_utils import EngineArgs
import sys
config = EngineArgs(sys.argv[1], dtype="float32", max_model_len=512, **eval(sys.argv[2])).create_engine_config()
print("CLASSES", config.parallel_config.worker_cls, config.scheduler_config.scheduler_cls)
"""


def classes(model: str, arguments: dict[str, Any] | None = None, **variables: str) -> list[str]:
    done = run("-c", SHOW, model, repr(arguments or {}), VLLM_CPU_KVCACHE_SPACE="1", **variables)
    told = [line for line in done.stdout.splitlines() if line.startswith("CLASSES")]
    assert told, done.stderr[-2000:]
    return told[0].split()[1:]


def test_installing_alone_changes_nothing(model: str) -> None:
    assert classes(model) == ["vllm.v1.worker.cpu_worker.CPUWorker", "None"]


def test_one_variable_or_one_flag_puts_guards_in(model: str) -> None:
    ours = ["checkengine.vllm_classes.GuardedWorker", "checkengine.vllm_classes.GuardedScheduler"]
    assert classes(model, CHECKENGINE_VLLM="1") == ours
    assert classes(model, {"additional_config": {"checkengine": True}}) == ours


def test_a_worker_of_the_user_s_own_is_left_alone(model: str) -> None:
    own = {"worker_cls": "vllm.v1.worker.gpu_worker.Worker"}
    assert classes(model, own, CHECKENGINE_VLLM="1") == ["vllm.v1.worker.gpu_worker.Worker", "None"]


def test_the_doctor_finds_every_hook_of_the_tested_version() -> None:
    done = run("-m", "checkengine", "doctor", "--json", VLLM_PLUGINS="checkengine")
    found = json.loads(done.stdout.splitlines()[-1])["vllm"]
    assert (done.returncode, found["tested"], found["off"]) == (0, True, [])
    assert found["hooks"] >= 18
