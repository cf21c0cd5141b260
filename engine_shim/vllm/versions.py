"""What the installed vLLM offers to hold on to, and what will be off for want of it. Nothing here raises."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("vllm.checkengine")

TESTED = ((0, 32), (0, 33))
"""Versions that the tests have run on: from the first one on, below the second one."""


@dataclass(frozen=True, slots=True)
class Hook:
    part: str
    """What it is needed for: `worker`, `scheduler`, `quarantine`, `metrics`…; without it that part is off."""
    name: str
    works: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Wanted:
    part: str
    path: str
    members: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    """Of the callable at `path`, beginning with its first one after self."""


WANTED = (
    _Wanted("configuration", "vllm.engine.arg_utils:EngineArgs.create_engine_config"),
    _Wanted("worker", "vllm.v1.worker.gpu_worker:Worker.execute_model", arguments=("scheduler_output",)),
    _Wanted("worker", "vllm.v1.worker.gpu_worker:Worker.sample_tokens", arguments=("grammar_output",)),
    _Wanted("worker", "vllm.v1.outputs:AsyncModelRunnerOutput", ("get_output",)),
    _Wanted("V1 runner", "vllm.v1.worker.gpu_model_runner:ExecuteModelState", ("logits", "spec_decode_metadata")),
    _Wanted("V2 runner", "vllm.v1.worker.gpu.model_runner:ExecuteModelState", ("input_batch",)),
    _Wanted("V2 runner", "vllm.v1.worker.gpu.input_batch:InputBatch"),
    _Wanted("scheduler", "vllm.v1.core.sched.scheduler:Scheduler.schedule"),
    _Wanted(
        "scheduler",
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
        arguments=("scheduler_output", "model_runner_output"),
    ),
    _Wanted(
        "scheduler",
        "vllm.v1.core.sched.scheduler:Scheduler.finish_requests",
        arguments=("request_ids", "finished_status"),
    ),
    _Wanted("scheduler", "vllm.v1.core.sched.async_scheduler:AsyncScheduler"),
    _Wanted("scheduler", "vllm.v1.engine:EngineCoreOutput", ("new_token_ids", "finish_reason", "stop_reason")),
    _Wanted("scheduler", "vllm.v1.engine:FinishReason", ("STOP",)),
    _Wanted("scheduler", "vllm.v1.request:RequestStatus", ("FINISHED_STOPPED",)),
    _Wanted("quarantine", "vllm.v1.core.kv_cache_manager:KVCacheManager.get_block_ids", arguments=("request_id",)),
    _Wanted("quarantine", "vllm.v1.core.kv_cache_manager:KVCacheManager.evict_blocks", arguments=("block_ids",)),
    _Wanted("quarantine", "vllm.v1.worker.gpu_model_runner:GPUModelRunner", ("_zero_block_ids", "_init_kv_zero_meta")),
    _Wanted("metrics", "vllm.v1.metrics.prometheus:get_prometheus_registry"),
)


def installed_version() -> str:
    """Of whatever package brought `vllm`; empty where there is none."""
    try:
        return str(importlib.import_module("vllm").__version__)
    except Exception:
        return ""


def tested(version: str) -> bool:
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return len(numbers) == 2 and TESTED[0] <= numbers < TESTED[1]


def hooks(find: Callable[[str], Any] | None = None) -> list[Hook]:
    """All that is wanted, found or not. `find` gets a path as `module:name.name`."""
    return [_look(wanted, find or find_path) for wanted in WANTED]


def find_path(path: str) -> Any:
    """Raises ImportError or AttributeError."""
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def missing(found: list[Hook], *parts: str) -> list[Hook]:
    return [hook for hook in found if not hook.works and hook.part in parts]


def tell(version: str, found: list[Hook]) -> None:
    """One warning for a version that was never tried, and one for each part that will be off."""
    lacking = [hook for hook in found if not hook.works]
    if not tested(version):
        first, end = (".".join(map(str, numbers)) for numbers in TESTED)
        logger.warning(
            "checkengine was tested with vLLM %s up to, not including, %s; this is %s. %d of its %d hooks were found%s",
            *(first, end, version or "unknown", len(found) - len(lacking), len(found)),
            "" if not lacking else "; not found: " + ", ".join(hook.name for hook in lacking),
        )
    for hook in lacking:
        logger.warning("checkengine: %s is off, since %s %s", hook.part, hook.name, hook.note)


def _look(wanted: _Wanted, find: Callable[[str], Any]) -> Hook:
    try:
        found = find(wanted.path)
    except Exception as error:
        return Hook(wanted.part, wanted.path, False, f"is not there ({type(error).__name__})")
    known = set(dir(found)) | set(getattr(found, "__annotations__", ())) | set(getattr(found, "_fields", ()))
    if lacking := [name for name in wanted.members if name not in known]:
        return Hook(wanted.part, wanted.path, False, f"has no {', '.join(lacking)}")
    if wanted.arguments and not takes(found, wanted.arguments):
        return Hook(wanted.part, wanted.path, False, f"does not take ({', '.join(wanted.arguments)})")
    return Hook(wanted.part, wanted.path, True)


def takes(function: Any, arguments: tuple[str, ...]) -> bool:
    """Its positional arguments begin with these, `self` left out."""
    try:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
    except (TypeError, ValueError):
        return False
    return tuple(names[: len(arguments)]) == arguments
