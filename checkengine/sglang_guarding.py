"""The composition root inside SGLang."""

from __future__ import annotations

import logging
from typing import Any

from checkengine.assemble import replica_name
from checkengine.config import load_settings
from checkengine.detectors import Vocabulary, warm_up
from checkengine.engine_shim.sglang.observer import LogitsObserver, SchedulerGuards
from checkengine.guards import EventBus, IncidentBook, Pipeline, Policy, build_guards
from checkengine.storage import open_spool

logger = logging.getLogger("sglang.checkengine")


def build_observer(runner: Any, tokenizer: Any = None, stopped_reason: Any = None) -> LogitsObserver:
    """`tokenizer` and `stopped_reason` are SGLang's where they are not given. Raises ConfigurationError."""
    settings = load_settings()
    size = int(runner.model_config.vocab_size)
    vocabulary = Vocabulary.from_tokenizer(tokenizer or tokenizer_of(runner), size)
    warm_up((runner.dtype,), str(runner.device).partition(":")[0], size)
    bus = EventBus()
    open_spool(settings, bus, replica_name())
    pipeline = Pipeline(build_guards(settings.guards, vocabulary), settings.guards, publish=bus.publish)
    policy = Policy(settings.guards, settings.brake, IncidentBook(), publish=bus.publish, replica=replica_name())
    alone = int(getattr(runner, "tp_size", 1)) == 1
    if not alone:
        logger.warning("checkengine: with tensor parallelism guards only observe: ranks must not decide apart")
    guards = SchedulerGuards(pipeline, policy, bus, stopped_reason or finish_reason, stops=alone)
    return LogitsObserver(guards, None if settings.logits.level == "auto" else settings.logits.level)


def tokenizer_of(runner: Any) -> Any:
    from transformers import AutoTokenizer

    arguments = runner.server_args
    return AutoTokenizer.from_pretrained(
        arguments.tokenizer_path or arguments.model_path, trust_remote_code=arguments.trust_remote_code
    )


def finish_reason(text: str) -> Any:
    """A normal stop, that names what it matched."""
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

    return FINISH_MATCHED_STR(text)
