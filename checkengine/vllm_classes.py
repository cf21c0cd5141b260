"""The classes that vLLM loads by name. They are made when they are asked for, over what the installed vLLM has."""

from __future__ import annotations

from functools import cache
from typing import Any

from checkengine.engine_shim.vllm.scheduler import GuardedScheduler as Guarded
from checkengine.engine_shim.vllm.scheduler import SchedulerGuards
from checkengine.engine_shim.vllm.worker import Observer, ObservingWorker


def __getattr__(name: str) -> Any:
    if name == "GuardedWorker":
        return guarded_worker()
    if name in ("GuardedScheduler", "GuardedAsyncScheduler"):
        return guarded_scheduler(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Worker(ObservingWorker):
    def make_observer(self) -> Observer:
        from checkengine.vllm_guarding import build_observer

        return build_observer(self)


class Scheduler(Guarded):
    def make_guards(self) -> SchedulerGuards:
        from checkengine.vllm_guarding import build_guards_of

        return build_guards_of(self)


@cache
def guarded_worker() -> type:
    """Over the platform's own worker class."""
    return type("GuardedWorker", (Worker, platform_worker()), {"__module__": __name__})


@cache
def guarded_scheduler(name: str) -> type:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler as Plain

    return type(
        name, (Scheduler, AsyncScheduler if name == "GuardedAsyncScheduler" else Plain), {"__module__": __name__}
    )


def platform_worker() -> type:
    """What vLLM's platforms put where `--worker-cls` is left alone. Raises ImportError for other platforms."""
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import resolve_obj_by_qualname

    name = worker_name(current_platform)
    found: type = resolve_obj_by_qualname(name)
    return found


def worker_name(platform: Any) -> str:
    if platform.is_cpu():
        return "vllm.v1.worker.cpu_worker.CPUWorker"
    if platform.is_xpu():
        return "vllm.v1.worker.xpu_worker.XPUWorker"
    if platform.is_cuda_alike():
        return "vllm.v1.worker.gpu_worker.Worker"
    raise ImportError(f"checkengine knows no worker class of the platform {platform.device_name!r}")
