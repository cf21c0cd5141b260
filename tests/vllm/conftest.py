"""Tests inside vLLM (make test-vllm). An environment without vLLM collects none of them."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOUND = importlib.util.find_spec("vllm")
HAVE_VLLM = FOUND is not None and FOUND.origin is not None
"""A folder of that name on the path is no vLLM."""
collect_ignore_glob = [] if HAVE_VLLM else ["test_*.py"]

MODEL = "smollm2-135m"
COMMON = {"dtype": "float32", "max_model_len": 1024, "enforce_eager": True, "max_num_seqs": 8}
"""And prompts in chunks of 64 tokens, so that every long one is chunked."""


@pytest.fixture(scope="session")
def model() -> str:
    from checkengine.engine_shim.models import model_directory

    return str(model_directory(MODEL))


class Switches:
    """Arms and disarms the faults of `vllm_faults` while an engine runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def on(self, name: str, **arguments: Any) -> Iterator[None]:
        path = self.folder / name
        path.write_text(json.dumps(arguments))
        try:
            yield
        finally:
            path.unlink()


@pytest.fixture(scope="session")
def switches(tmp_path_factory: pytest.TempPathFactory) -> Switches:
    return Switches(tmp_path_factory.mktemp("switches"))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, switches: Switches) -> dict[str, str]:
    """Variables of every engine and server: guards on, the fault plugin on the path, small KV memory."""
    import vllm_faults

    folder = vllm_faults.plugin_folder(tmp_path_factory.mktemp("plugin"))
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), str(folder), os.environ.get("PYTHONPATH")])),
        "DRILL_SWITCHES": str(switches.folder),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "CHECKENGINE_VLLM": "1",
        "CHECKENGINE_GUARDS__IGNORED_STOP__ACTION": "stop",
        "CHECKENGINE_GUARDS__REPETITION__ACTION": "stop",
        "CHECKENGINE_CAPTURE__ENABLED": "false",
        # One engine is stopped many times in few minutes, which is what the brake is for.
        "CHECKENGINE_BRAKE__MINIMUM_STOPPED": "1000",
    }


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@pytest.fixture(scope="session")
def engine(start: Callable[..., contextlib.AbstractContextManager[Any]], bundles: Path) -> Iterator[Any]:
    """Shared, since a start takes most of a minute: with adapters, captures with content, and audits that are never due
    unless a test says so. Prompts in chunks and a prefix cache are vLLM's defaults."""
    extra = {
        "CHECKENGINE_CAPTURE__ENABLED": "true",
        "CHECKENGINE_CAPTURE__CONTENT": "full",
        "CHECKENGINE_CAPTURE__DIRECTORY": str(bundles),
        "CHECKENGINE_VLLM_AUDIT": "1",
        "CHECKENGINE_AUDIT__EVERY_STEPS": str(10**9),
        # Of every row, so that a replay's bits can be compared with it.
        "CHECKENGINE_LOGITS__LEVEL": "full",
    }
    with start(extra, enable_lora=True, max_lora_rank=8) as made:
        yield made


@contextlib.contextmanager
def variables(given: dict[str, str]) -> Iterator[None]:
    old = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in old.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@pytest.fixture(scope="session")
def start(
    model: str, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., contextlib.AbstractContextManager[Any]]:
    """Makes an LLM as a user does, and ends its processes; `.spool` is where its findings go."""

    @contextlib.contextmanager
    def started(extra: dict[str, str] | None = None, **arguments: Any) -> Iterator[Any]:
        spool = tmp_path_factory.mktemp("spool")
        given = {**environment, "CHECKENGINE_SPOOL__DIRECTORY": str(spool), **(extra or {})}
        with variables(given), added_to_path(given["PYTHONPATH"]):
            from vllm import LLM

            engine = LLM(model, **{**COMMON, "max_num_batched_tokens": 64, **arguments})
            engine.spool = spool
            try:
                yield engine
            finally:
                engine.llm_engine.engine_core.shutdown()
                del engine
                gc.collect()

    return started


@contextlib.contextmanager
def added_to_path(path: str) -> Iterator[None]:
    parts = path.split(os.pathsep)
    sys.path[:0] = parts
    try:
        yield
    finally:
        for part in parts:
            sys.path.remove(part)


sys.path.insert(0, str(HERE))
