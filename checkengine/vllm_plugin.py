"""The entry point that vLLM calls in each of its processes (`vllm.general_plugins`).

It does nothing unless CHECKENGINE_VLLM=1 is set, or `--additional-config '{"checkengine": true}'` asks for it. Then it
names our worker and scheduler in vLLM's own configuration, as `--worker-cls` and `--scheduler-cls` would.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

VARIABLE = "CHECKENGINE_VLLM"
PAGES = "CHECKENGINE_VLLM_PAGES"
"""Set by us: the folder through which engine cores' metrics reach the process that serves `/metrics`."""
KEY = "checkengine"
"""Of vLLM's `--additional-config`: true, false, or the path of a checkengine.toml."""
WORKER = "checkengine.vllm_classes.GuardedWorker"
SCHEDULER = "checkengine.vllm_classes.GuardedScheduler"
ASYNC_SCHEDULER = "checkengine.vllm_classes.GuardedAsyncScheduler"

logger = logging.getLogger("vllm.checkengine")


def register() -> None:
    """May be called any number of times; never raises."""
    try:
        from checkengine.engine_shim.vllm.numba_first import let_vllm_scan_llvmlite

        let_vllm_scan_llvmlite()
        from vllm.engine.arg_utils import EngineArgs

        if not hasattr(EngineArgs.create_engine_config, "checkengine"):
            EngineArgs.create_engine_config = guarded_configuration(EngineArgs.create_engine_config)
    except Exception:
        logger.warning("checkengine cannot hook into this vLLM; it serves without guards", exc_info=True)


def guarded_configuration(create: Any) -> Any:
    """In front of `EngineArgs.create_engine_config`, where every way of starting vLLM comes by."""

    @functools.wraps(create)
    def create_engine_config(self: Any, *arguments: Any, **keywords: Any) -> Any:
        config = create(self, *arguments, **keywords)
        if wanted(config.additional_config):
            try:
                from checkengine.vllm_setup import put_guards

                put_guards(config)
            except Exception as error:
                tell_unguarded(error)
        return config

    create_engine_config.checkengine = True  # type: ignore[attr-defined]
    return create_engine_config


def tell_unguarded(error: Exception) -> None:
    """A line for each fault of the user's, a traceback for one of ours."""
    if not told_to_users(error):
        logger.error("checkengine: this vLLM cannot be guarded; it serves without guards", exc_info=error)
        return
    logger.error("checkengine: NO GUARDS, vLLM serves without them:")
    for line in str(error).splitlines():
        logger.error("checkengine: %s", line)


def told_to_users(error: Exception) -> bool:
    from checkengine.guards.errors import UserError

    return isinstance(error, UserError)


def wanted(additional_config: Any) -> bool:
    """The command line outweighs the environment."""
    asked = additional_config.get(KEY) if isinstance(additional_config, dict) else None
    if asked is not None:
        return bool(asked)
    return switched_on(VARIABLE)


def switched_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")
