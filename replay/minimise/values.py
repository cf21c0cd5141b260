"""What stands in a call's tensors: what was recorded, or numbers that tell of nobody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np
import torch

from checkengine.replay.op_call import OpCall


class Values(StrEnum):
    RECORDED = "recorded"
    NOISE = "noise"
    """Seeded, uniform over the 255 multiples of 1/32 between -4 and 4: exact from 8 bits of significand on."""
    ONE_HOT = "one-hot"
    """All keys are the query, so that every slot weighs the same, and each slot's value points along its own axis: the
    output shows what was read."""
    ONES = "ones"


SYNTHETIC = (Values.ONES, Values.ONE_HOT, Values.NOISE)
"""Plainest first."""

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]
"""Of query, keys, values and sinks."""


def with_values(call: OpCall, values: Values, seed: int = 0) -> OpCall:
    """The call with every tensor made anew; as it is for RECORDED. The same bits on every machine."""
    if values is Values.RECORDED:
        return call
    shapes: Shapes = (
        tuple(call.query.shape),
        tuple(call.keys.shape),
        tuple(call.values.shape),
        None if call.sinks is None else tuple(call.sinks.shape),
    )
    query, keys, held, sinks = made(shapes, values, seed)
    return replace(
        call,
        query=query.to(call.query.dtype),
        keys=keys.to(call.keys.dtype),
        values=held.to(call.values.dtype),
        sinks=None if call.sinks is None or sinks is None else sinks.to(call.sinks.dtype),
    )


def made(shapes: Shapes, values: Values, seed: int) -> tuple[torch.Tensor, ...]:
    query, keys, held, sinks = shapes
    if values is Values.NOISE:
        stream = np.random.PCG64(seed)
        return tuple(_noisy(stream, shape) for shape in (query, keys, held, sinks or (0,)))
    none = torch.zeros(sinks or (0,))
    if values is Values.ONES:
        return torch.ones(query), torch.ones(keys), torch.ones(held), none
    return _first_axis(query), _first_axis(keys), _axes(held), none


def _noisy(stream: np.random.PCG64, shape: Sequence[int]) -> torch.Tensor:
    """From the raw stream of PCG64, which numpy keeps stable; that of its Generator it does not."""
    words = np.asarray(stream.random_raw(math.prod(shape)), np.uint64)
    return torch.from_numpy(((words >> np.uint64(32)) % np.uint64(255)).astype(np.float32) - 127).div(32).view(*shape)


def _first_axis(shape: Sequence[int]) -> torch.Tensor:
    tensor = torch.zeros(tuple(shape))
    tensor[..., 0] = 1.0
    return tensor


def _axes(shape: Sequence[int]) -> torch.Tensor:
    """Shape (blocks, block_size, heads, dim)."""
    blocks, size, _, dim = shape
    slots = torch.arange(blocks * size).view(blocks, size, 1, 1)
    return (slots % dim == torch.arange(dim)).float().expand(*shape).clone()
