"""Healthy attention in other orders of summation: what the error bound must never convict.

Each is what some kernel does: the textbook's formula, one slot after another, running maximum over chunks, split over
parts that are merged in the end. Half types are accumulated in float32, stored where such kernels store them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from checkengine.replay.judge.bound import visible
from checkengine.replay.op_call import OpCall

Attention = Callable[[OpCall], torch.Tensor]


def textbook(call: OpCall) -> torch.Tensor:
    """As an eager framework: every intermediate result is stored in the call's dtype."""
    query, keys, values = parts(call)
    scores = capped(call, query @ keys.transpose(1, 2) * call.scaling)
    return (softmax(call, scores) @ values).transpose(0, 1)


def one_by_one(call: OpCall) -> torch.Tensor:
    """All sums run from the first element to the last."""
    query, keys, values = (part.float() if part.element_size() < 4 else part for part in parts(call))
    scores = torch.zeros(query.shape[0], query.shape[1], call.length, dtype=query.dtype)
    for index in range(query.shape[2]):
        scores += (query[..., index] * call.scaling).unsqueeze(2) * keys[..., index].unsqueeze(1)
    weights = softmax(call, capped(call, scores))
    output = torch.zeros(*query.shape[:2], values.shape[2], dtype=query.dtype)
    for position in range(call.length):
        output += weights[..., position].unsqueeze(2) * values[:, position].unsqueeze(1)
    return output.transpose(0, 1).to(call.query.dtype)


def chunked(call: OpCall, chunk: int = 16, backwards: bool = False) -> torch.Tensor:
    """Running maximum, sum and output, scaled again after every chunk; weights stored in the call's dtype before they
    meet the values, as tensor cores want them."""
    query, keys, values = parts(call)
    accumulate = torch.float64 if call.query.dtype == torch.float64 else torch.float32
    scores = capped(call, (query.to(accumulate) @ keys.to(accumulate).transpose(1, 2)) * call.scaling)
    scores = scores.masked_fill(~visible(call, torch.arange(len(call.query))), -torch.inf)
    peak, total, output = started(call, scores, values.shape[2])
    pieces = list(range(0, call.length, chunk))
    for first in reversed(pieces) if backwards else pieces:
        part = scores[..., first : first + chunk]
        higher = torch.maximum(peak, part.amax(-1, keepdim=True))
        shrink = torch.where(torch.isinf(peak), 0.0, torch.exp(peak - higher))
        weights = torch.where(torch.isinf(part), 0.0, torch.exp(part - higher))
        stored = weights.to(call.query.dtype).to(accumulate)
        total = total * shrink + weights.sum(-1, keepdim=True)
        output = output * shrink + stored @ values[:, first : first + chunk].to(accumulate)
        peak = higher
    return (output / total).transpose(0, 1).to(call.query.dtype)


def split(call: OpCall) -> torch.Tensor:
    """The last chunk first: other parts, other order."""
    return chunked(call, 128, backwards=True)


def started(call: OpCall, scores: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Running maximum, sum and output before the first chunk."""
    shape = (*scores.shape[:2], 1)
    output = torch.zeros(*scores.shape[:2], width, dtype=scores.dtype)
    if call.sinks is None:
        return torch.full(shape, -torch.inf, dtype=scores.dtype), torch.zeros(shape, dtype=scores.dtype), output
    return call.sinks.to(scores.dtype).view(-1, 1, 1).expand(shape), torch.ones(shape, dtype=scores.dtype), output


ORDERS: Mapping[str, Attention] = {
    "textbook": textbook,
    "one by one": one_by_one,
    "chunks of 16": chunked,
    "chunks of 128, backwards": split,
}


def parts(call: OpCall) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query (heads, tokens, key_dim), keys and values (heads, length, dim) of the row, in their own dtype."""
    places = torch.from_numpy(np.searchsorted(call.blocks, call.table).astype(np.int64))
    repeats = call.query.shape[1] // call.keys.shape[2]

    def own(memory: torch.Tensor) -> torch.Tensor:
        return memory[places].flatten(0, 1)[: call.length].transpose(0, 1).repeat_interleave(repeats, 0)

    return call.query.transpose(0, 1), own(call.keys), own(call.values)


def capped(call: OpCall, scores: torch.Tensor) -> torch.Tensor:
    return torch.tanh(scores / call.softcap) * call.softcap if call.softcap else scores


def softmax(call: OpCall, scores: torch.Tensor) -> torch.Tensor:
    scores = scores.masked_fill(~visible(call, torch.arange(len(call.query))), -torch.inf)
    if call.sinks is None:
        return torch.softmax(scores, -1)
    sink = call.sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, scores.shape[1], 1)
    return torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]
