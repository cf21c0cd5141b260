"""Puts guards into a vLLM configuration, as far as the installed version allows it."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from functools import cache
from typing import Any

from prometheus_client import REGISTRY

from checkengine.config import FILE_VARIABLE, load_settings
from checkengine.dashboards.metric_pages import PagesCollector
from checkengine.dashboards.metrics import MULTIPROCESS
from checkengine.engine_shim.vllm.versions import hooks, installed_version, missing, tell
from checkengine.vllm_plugin import ASYNC_SCHEDULER, KEY, PAGES, SCHEDULER, WORKER

logger = logging.getLogger("vllm.checkengine")


def put_guards(config: Any) -> None:
    """Name our classes in a VllmConfig. Raises ConfigurationError for a checkengine.toml that cannot be used."""
    use_file(config.additional_config)
    load_settings()
    import checkengine.vllm_classes as classes

    found = hooks()
    tell(installed_version(), found)
    if missing(found, "worker", "scheduler"):
        return
    refuse_others(config)
    scheduler = ASYNC_SCHEDULER if config.scheduler_config.async_scheduling else SCHEDULER
    # Made here once, so that what fails does so where nothing has been changed yet.
    for name in (WORKER, scheduler):
        getattr(classes, name.rpartition(".")[2])
    share_metrics()
    config.parallel_config.worker_cls = WORKER
    config.scheduler_config.scheduler_cls = scheduler
    logger.info("checkengine: guards are on (%s, %s)", WORKER, scheduler)


def share_metrics() -> None:
    """In the process that serves `/metrics`; nothing to do where several share prometheus-client's own folder."""
    if MULTIPROCESS not in os.environ:
        if PAGES not in os.environ:
            os.environ[PAGES] = tempfile.mkdtemp(prefix="checkengine-metrics-")
            atexit.register(shutil.rmtree, os.environ[PAGES], ignore_errors=True)
        tell_metrics(os.environ[PAGES])


@cache
def tell_metrics(folder: str) -> None:
    REGISTRY.register(PagesCollector(folder))


def refuse_others(config: Any) -> None:
    """A worker or scheduler of the user's own is not replaced. Raises RuntimeError, which is told and costs guards."""
    from checkengine.vllm_classes import worker_name

    own = config.parallel_config.worker_cls
    if own not in (WORKER, worker_name(_platform())):
        raise RuntimeError(f"--worker-cls {own} is not vLLM's own: derive it from checkengine.vllm_classes.Worker")
    if config.scheduler_config.scheduler_cls not in (None, SCHEDULER, ASYNC_SCHEDULER):
        raise RuntimeError("--scheduler-cls is not vLLM's own: derive it from checkengine.vllm_classes.Scheduler")


def _platform() -> Any:
    from vllm.platforms import current_platform

    return current_platform


def use_file(additional_config: Any) -> None:
    """A path in `--additional-config` reaches the other processes through the environment."""
    asked = additional_config.get(KEY) if isinstance(additional_config, dict) else None
    if isinstance(asked, str):
        os.environ[FILE_VARIABLE] = os.path.abspath(asked)
