"""The composition root inside vLLM: guards in the engine core's scheduler, an observer in each worker."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from checkengine.assemble import replica_name
from checkengine.config import load_settings
from checkengine.detectors import Vocabulary
from checkengine.engine_shim.vllm.quarantine import Quarantine
from checkengine.engine_shim.vllm.scheduler import SchedulerGuards
from checkengine.engine_shim.vllm.worker import Observer
from checkengine.guards import EventBus, IncidentBook, Pipeline, Policy, build_guards
from checkengine.storage import open_spool

logger = logging.getLogger("vllm.checkengine")


def build_observer(worker: Any) -> Observer:
    settings = load_settings()
    return Observer(None if settings.logits.level == "auto" else settings.logits.level)


def build_guards_of(scheduler: Any) -> SchedulerGuards:
    """Guards, policy and spool of one engine core. Raises ConfigurationError."""
    settings = load_settings()
    config = scheduler.vllm_config
    bus, book = EventBus(), IncidentBook()
    quarantine = Quarantine(scheduler.kv_cache_config.num_blocks)
    pipeline = Pipeline(build_guards(settings.guards, vocabulary_of(config)), settings.guards, publish=bus.publish)
    policy = Policy(
        settings.guards,
        settings.brake,
        book,
        publish=bus.publish,
        replica=replica_name(),
        kernel=kernel_of(config),
        quarantined_fraction=lambda: quarantine.fraction,
    )
    spool = open_spool(settings, bus, replica_name())
    return SchedulerGuards(pipeline, policy, bus, quarantine, closers=[bus, *([spool] if spool else [])])


def vocabulary_of(config: Any) -> Vocabulary:
    """Of the model's tokenizer, as vLLM loads it; without one every id of the head is possible and no text known."""
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer, size = cached_tokenizer_from_config(config.model_config), config.model_config.get_vocab_size()
    return Vocabulary.from_tokenizer(tokenizer, size) if tokenizer is not None else unknown_vocabulary(size)


def unknown_vocabulary(size: int) -> Vocabulary:
    tables = np.zeros(size, np.uint8)
    return Vocabulary((b"",) * size, np.ones(size, np.bool_), tables, tables.astype(np.bool_), frozenset(), {})


def kernel_of(config: Any) -> str:
    """What tells one numeric configuration from another one in an incident."""
    import vllm

    runner = "v2" if config.use_v2_model_runner else "v1"
    dtype = str(config.model_config.dtype).rpartition(".")[2]
    return f"vllm {vllm.__version__}/{runner}/{config.device_config.device_type}/{dtype}"
