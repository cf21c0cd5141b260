"""Puts guards into a vLLM configuration, as far as the installed version allows it."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from typing import Any

from prometheus_client import REGISTRY

from checkengine.config import FILE_VARIABLE, load_settings
from checkengine.dashboards.metric_pages import PagesCollector
from checkengine.dashboards.metrics import MULTIPROCESS
from checkengine.engine_shim.vllm.versions import hooks, installed_version, missing, tell
from checkengine.guards.errors import UserError
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
    PAGES_OF_THIS_PROCESS.share()
    config.parallel_config.worker_cls = WORKER
    config.scheduler_config.scheduler_cls = scheduler
    logger.info("checkengine: guards are on (%s, %s)", WORKER, scheduler)


class Pages:
    """The folder through which engines that this process starts reach its `/metrics`. A folder that was inherited
    through the environment is another process's, whose engines are none of ours."""

    def __init__(self) -> None:
        self._process, self._folder = 0, ""
        self._collector: PagesCollector | None = None

    def share(self) -> None:
        """Nothing to do where several processes share prometheus-client's own folder. Never raises: it costs metrics,
        not the guards."""
        if MULTIPROCESS in os.environ:
            return
        os.environ.pop(PAGES, None)
        try:
            if self._process != os.getpid():
                self._begin(tempfile.mkdtemp(prefix="checkengine-metrics-"))
        except OSError as error:
            logger.error("checkengine: no metrics on /metrics: no folder can be made for them (%s)", error)
        else:
            os.environ[PAGES] = self._folder

    def _begin(self, folder: str) -> None:
        if self._collector is not None:  # Of the process that this one was forked from.
            REGISTRY.unregister(self._collector)
        self._process, self._folder, self._collector = os.getpid(), folder, PagesCollector(folder)
        REGISTRY.register(self._collector)
        atexit.register(self._remove, folder, self._process)

    def _remove(self, folder: str, process: int) -> None:
        if process == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)


PAGES_OF_THIS_PROCESS = Pages()


def refuse_others(config: Any) -> None:
    """A worker or scheduler of the user's own is not replaced. Raises UserError, which is told and costs guards."""
    from checkengine.vllm_classes import worker_name

    own = config.parallel_config.worker_cls
    if own not in (WORKER, worker_name(_platform())):
        raise UserError(f"--worker-cls {own} is not vLLM's own: derive it from checkengine.vllm_classes.Worker")
    if config.scheduler_config.scheduler_cls not in (None, SCHEDULER, ASYNC_SCHEDULER):
        raise UserError("--scheduler-cls is not vLLM's own: derive it from checkengine.vllm_classes.Scheduler")


def _platform() -> Any:
    from vllm.platforms import current_platform

    return current_platform


def use_file(additional_config: Any) -> None:
    """A path in `--additional-config` reaches the other processes through the environment."""
    asked = additional_config.get(KEY) if isinstance(additional_config, dict) else None
    if isinstance(asked, str):
        os.environ[FILE_VARIABLE] = os.path.abspath(asked)
