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
import json, os, sys
from vllm.engine.arg_utils import EngineArgs
for variable, arguments in json.loads(sys.argv[2]):
    os.environ["CHECKENGINE_VLLM"] = variable
    config = EngineArgs(sys.argv[1], dtype="float32", max_model_len=512, **arguments).create_engine_config()
    print("CLASSES", config.parallel_config.worker_cls, config.scheduler_config.scheduler_cls)
"""
PLAIN = ["vllm.v1.worker.cpu_worker.CPUWorker", "None"]
OURS = ["checkengine.vllm_classes.GuardedWorker", "checkengine.vllm_classes.GuardedScheduler"]
OWN = "vllm.v1.worker.gpu_worker.Worker"


def test_one_variable_or_one_flag_puts_guards_in_and_installing_alone_does_not(model: str) -> None:
    asked: list[tuple[str, dict[str, Any], list[str]]] = [
        ("", {}, PLAIN),
        ("1", {}, OURS),
        ("", {"additional_config": {"checkengine": True}}, OURS),
        ("1", {"additional_config": {"checkengine": False}}, PLAIN),
        ("1", {"worker_cls": OWN}, [OWN, "None"]),
    ]
    given = json.dumps([each[:2] for each in asked])
    done = run("-c", SHOW, model, given, VLLM_CPU_KVCACHE_SPACE="1")
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("CLASSES")]
    assert found == [each[2] for each in asked], done.stderr[-2000:]


def test_the_doctor_finds_every_hook_of_the_tested_version() -> None:
    done = run("-m", "checkengine", "doctor", "--json", VLLM_PLUGINS="checkengine")
    found = json.loads(done.stdout.splitlines()[-1])["vllm"]
    assert (found["tested"], found["off"]) == (True, [])
    assert found["hooks"] >= 18


TWO_RANKS = """
import sys
from vllm.engine.arg_utils import EngineArgs
EngineArgs(sys.argv[1], dtype="float32", max_model_len=512, tensor_parallel_size=2).create_engine_config()
"""


def test_vllm_refuses_two_ranks_for_a_model_of_nine_heads_by_itself_and_says_why(model: str) -> None:
    """So three ranks are what is tested (test_engines.py)."""
    for switched in ("0", "1"):
        done = run("-c", TWO_RANKS, model, CHECKENGINE_VLLM=switched, VLLM_CPU_KVCACHE_SPACE="1")
        assert done.returncode != 0
        assert "attention heads (9) must be divisible by tensor parallel size (2)" in done.stderr
