"""A vLLM worker by itself: loaded as an engine loads it, driven by messages of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from checkengine.engine_shim.models import MODEL_VARIABLE, ModelError, recorded_model
from checkengine.engine_shim.vllm.environment import engine_arguments, files_digest, variables_of
from checkengine.engine_shim.vllm.numba_first import let_vllm_scan_llvmlite
from checkengine.replay.executor import CannotReplayError, WeightsChangedError

ONE_PROCESS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # A bundle names its model, and may come from a stranger: nothing is fetched for it.
    "HF_HUB_OFFLINE": "1",
    # A replay's own output is on standard output.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
OURS = "CHECKENGINE_VLLM"
"""Switches our plugin on in engines that serve; a replay's worker is plain."""

MOST_THREADS = 1024
"""A record that names more was tampered with."""

_loaded: dict[str, tuple[Any, Any]] = {}
"""One engine a process: vLLM's distributed state is global."""


def lone_worker(environment: Mapping[str, Any]) -> Any:
    """vLLM's worker object. CannotReplayError where it cannot be made here."""
    directory = directory_of(str(environment.get("model", "")))
    refuse_other_weights(environment, directory)
    arguments = engine_arguments(environment, directory)
    key = repr(sorted(arguments.items()))
    if key not in _loaded:
        if _loaded:
            raise CannotReplayError(
                "this process holds another vLLM engine already: replay this bundle in its own process"
            )
        _loaded[key] = start(arguments, environment)
    return _loaded[key][1]


def start(arguments: Mapping[str, Any], environment: Mapping[str, Any]) -> tuple[Any, Any]:
    os.environ.pop(OURS, None)
    os.environ.update({name: value for name, value in ONE_PROCESS.items() if name not in os.environ})
    os.environ.update(variables_of(environment))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    set_threads(environment.get("threads"))
    let_vllm_scan_llvmlite()
    try:
        from vllm import LLM
    except ImportError as error:
        raise CannotReplayError(f"the record comes from vLLM, which is not installed here: {error}") from None
    try:
        engine = LLM(**arguments)
        return engine, engine.llm_engine.model_executor.driver_worker.worker
    except Exception as error:
        raise CannotReplayError(
            f"vLLM cannot be started as it was recorded: {type(error).__name__}: {error}"
        ) from error


def set_threads(threads: object) -> None:
    """As recorded: how a product is split decides its bits. Before vLLM is imported, since a second OpenMP library, if
    it brings one, reads the variable then, and since vLLM lets nobody change the number later."""
    if threads is None:
        return
    if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise CannotReplayError(f"the record names {threads!r} threads, where 1 to {MOST_THREADS} can be run")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def directory_of(model: str) -> str:
    """A fetched model's folder, a path, or the name as it is for vLLM to resolve."""
    try:
        return str(recorded_model(model))
    except ModelError as error:
        if "/" in model and not model.startswith(("/", ".")) and not os.environ.get(MODEL_VARIABLE):
            return model
        raise CannotReplayError(f"the record's model is not on this machine: {error}") from None


def refuse_other_weights(environment: Mapping[str, Any], directory: str) -> None:
    recorded = environment.get("weights_digest")
    if recorded is None:
        return
    found = files_digest(directory)
    if found != recorded:
        raise WeightsChangedError(
            f"weights changed: the record was made with files of digest {str(recorded)[:12]}…, here they have "
            f"{str(found)[:12]}…"
        )
