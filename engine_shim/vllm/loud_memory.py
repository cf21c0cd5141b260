"""Loud memory for canary replicas: a slot that nobody has written holds a large finite number, so that a kernel that
reads it says something that a guard sees. Right kernels multiply masked slots by zero and give the same bits as before.
"""

from __future__ import annotations

from typing import Any

import torch

LOUD = 1e30
"""Its products with a query stay finite in float32 and bfloat16."""
LOUD_HALF = 6e4


class LoudMemory:
    """Fills KV memory at the start, and each block again when it is handed on, before the step that gets it."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def ready(self, runner: Any) -> None:
        """No request has come yet."""
        if self.on:
            for cache in caches_of(runner):
                cache.fill_(loud(cache.dtype))

    def fresh(self, message: Any, block_size: int) -> list[int]:
        """Blocks that this SchedulerOutput hands on with nothing in them that counts; prefix hits are left out."""
        if not self.on:
            return []
        found: set[int] = set()
        for new in message.scheduled_new_reqs:
            found.update(unwritten(new.block_ids, new.num_computed_tokens, block_size))
        cached = message.scheduled_cached_reqs
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if blocks is not None:
                found.update(unwritten(blocks, computed if name in cached.resumed_req_ids else 0, block_size))
        return sorted(found - {0})

    def fill(self, runner: Any, blocks: list[int]) -> None:
        for cache in caches_of(runner):
            cache[blocks] = loud(cache.dtype)


def unwritten(groups: Any, computed: int, block_size: int) -> list[int]:
    """Of one request's blocks, in their order, those behind its computed tokens."""
    return [block for group in groups for block in group[-(-computed // block_size) :]]


def loud(dtype: torch.dtype) -> float:
    return LOUD_HALF if dtype is torch.float16 else LOUD


def caches_of(runner: Any) -> list[torch.Tensor]:
    """NotImplementedError where they are no plain tensors of numbers, (blocks, …)."""
    caches = list(runner.kv_caches)
    if not all(
        isinstance(cache, torch.Tensor) and cache.is_floating_point() and cache.itemsize > 1 for cache in caches
    ):
        raise NotImplementedError("the KV memory of this model cannot be made loud: it is no list of plain tensors")
    if runner.device.type != "cpu":
        raise NotImplementedError("loud memory was never tried on a device other than a CPU: it is off here")
    return caches
