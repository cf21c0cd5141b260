"""The entry point that SGLang calls in each of its processes (`sglang.srt.plugins`). Not run on a GPU.

It does nothing unless CHECKENGINE_SGLANG=1 is set. SGLang carries observers on its plain sampling path only: with
speculative decoding it refuses them, and the engine serves without guards.
"""

from __future__ import annotations

import logging
import os
from typing import Any

VARIABLE = "CHECKENGINE_SGLANG"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner.__init__"

logger = logging.getLogger("sglang.checkengine")


def register() -> None:
    """Never raises."""
    if os.environ.get(VARIABLE, "").strip().lower() not in ("1", "true", "yes", "on"):
        return
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(RUNNER, runner_made, HookType.AFTER)
    except Exception:
        logger.warning("checkengine cannot hook into this SGLang; it serves without guards", exc_info=True)


def runner_made(result: Any, runner: Any, *arguments: Any, **keywords: Any) -> None:
    """After `ModelRunner.__init__`: the target model's runner gets an observer."""
    if getattr(runner, "is_draft_worker", False):
        return
    try:
        from checkengine.sglang_guarding import build_observer

        runner.sampling_observer = build_observer(runner)
        logger.info("checkengine: guards are on")
    except Exception:
        logger.exception("checkengine: this SGLang cannot be guarded; it serves without guards")
