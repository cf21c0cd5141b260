"""What stands in a call's tensors: what was recorded, or numbers that tell of nobody."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def with_values(call: OpCall, values: Values, seed: int = 0) -> OpCall:
    """The call with every tensor made anew; as it is for RECORDED. The same bits on every machine."""
    if values is Values.RECORDED:
        return call
    tensors = tensors_of(call)
    made = made_up({name: tuple(tensor.shape) for name, tensor in tensors.items()}, values, seed)
    return with_tensors(call, {name: tensor.to(tensors[name].dtype) for name, tensor in made.items()})


def tensors_of(call: OpCall) -> dict[str, torch.Tensor]:
    """All of a call's tensors by name, in a fixed order."""
    found = {"query": call.query, "keys": call.keys, "values": call.values}
    if call.sinks is not None:
        found["sinks"] = call.sinks
    return found | {f"beside.{index}": row.query for index, row in enumerate(call.beside)}


def with_tensors(call: OpCall, tensors: Mapping[str, torch.Tensor]) -> OpCall:
    """The call with these in place of its own; names as in `tensors_of`."""
    beside = tuple(replace(row, query=tensors[f"beside.{index}"]) for index, row in enumerate(call.beside))
    query, keys, values = tensors["query"], tensors["keys"], tensors["values"]
    return replace(call, query=query, keys=keys, values=values, sinks=tensors.get("sinks"), beside=beside)


def made_up(shapes: Mapping[str, tuple[int, ...]], values: Values, seed: int) -> dict[str, torch.Tensor]:
    """Float32 tensors, in the order of the shapes."""
    stream = np.random.PCG64(seed)
    return {name: _made(name, shape, values, stream) for name, shape in shapes.items()}


def _made(name: str, shape: tuple[int, ...], values: Values, stream: np.random.PCG64) -> torch.Tensor:
    if values is Values.NOISE:
        return _noisy(stream, shape)
    if name == "sinks":
        return torch.zeros(shape)
    if values is Values.ONES:
        return torch.ones(shape)
    return _axes(shape) if name == "values" else _first_axis(shape)


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
