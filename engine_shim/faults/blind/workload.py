"""Requests under which blind faults strike a small engine (pages of 8 slots), with any model of 150 tokens or more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters

VOCABULARY = 150


class Workload(StrEnum):
    RANDOM = "random"
    """Six prompts of 3 to 50 random tokens, in chunks; nothing shared."""
    SHARED_PREFIX = "shared prefix"
    """Ten prompts that begin alike, more than fit into memory at once: prefix hits, reuse, preemption."""
    STOPPING = "stopping"
    """As random, with stop tokens that come up soon."""


@dataclass(frozen=True, slots=True)
class Strike:
    """How to make a fault strike."""

    parameters: Mapping[str, Any]
    quiet: Mapping[str, Any]
    """Parameters under which it never strikes on the same workload."""
    workload: Workload = Workload.RANDOM
    dirty_memory: bool = False
    """The memory must hold NaN, from an owner before, where nothing was written yet."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the engine."""


def settings_of(strike: Strike) -> dict[str, Any]:
    """Engine settings for a strike; one thread."""
    small = {"blocks": 22, "tokens_per_step": 32} if strike.workload is Workload.SHARED_PREFIX else {"blocks": 64}
    return {"block_size": 8, "tokens_per_step": 40, "maximum_sequences": 6, "threads": 1, **small, **strike.settings}


def requests_of(workload: Workload, seed: int = 1) -> list[GenerationRequest]:
    """The same requests for the same seed; every other one is greedy."""
    random = np.random.default_rng(seed)
    shared = workload is Workload.SHARED_PREFIX
    prefix = random.integers(0, VOCABULARY, 24).tolist()
    requests = []
    for number in range(10 if shared else 6):
        own = random.integers(0, VOCABULARY, 9 if shared else int(random.integers(3, 50))).tolist()
        prompt = prefix[: int(random.integers(8, 25))] + own if shared else own
        sampling = SamplingParameters(
            temperature=0.0 if number % 2 else 0.8,
            seed=number,
            top_p=0.9,
            max_tokens=24 if shared else 30,
            stop_token_ids=tuple(range(0, VOCABULARY, 12)) if workload is Workload.STOPPING else (),
        )
        requests.append(GenerationRequest(f"r{number}", prompt, sampling))
    return requests
