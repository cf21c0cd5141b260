"""A transformer block that a looped model applies eight times, beside one application.

A ratio below eight is what residency saves: later loops find the weights where the first has put them. At eight, each
loop pays for reading them again, however many layers share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from checkengine.probing.products import random_rows
from checkengine.probing.silence import silent_stderr
from checkengine.probing.timing import Pairs, Share, Work

LOOPS = 8
TOKENS = 4
HEAD = 64
EXPANSION = 4


@dataclass(frozen=True, slots=True)
class Looped:
    bytes: int
    """Of the block's weights."""
    variant: str
    """eager, compiled or graph."""
    one_seconds: float
    loops_seconds: float
    ratio: float
    """Eight loops' time over one's."""
    low: float
    high: float
    problem: str = ""
    """Why a variant could not be measured; its numbers are then 0."""

    @property
    def traffic(self) -> float:
        """Times that the weights were read, were the time all reading: at most eight."""
        return self.ratio


class Block(nn.Module):
    """Attention and a gated feed-forward layer, pre-normed, with the injection of the input that looped models have:
    h <- h + attention(norm(h + e)), then h <- h + feed_forward(norm(h))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * EXPANSION * width, bias=False)
        self.down = nn.Linear(EXPANSION * width, width, bias=False)

    def forward(self, state: torch.Tensor, injected: torch.Tensor) -> torch.Tensor:
        query, key, value = self.inputs(self.norm(state + injected)).unflatten(-1, (3, -1, HEAD)).unbind(-3)
        read = functional.scaled_dot_product_attention(*(each.transpose(0, 1) for each in (query, key, value)))
        state = state + self.output(read.transpose(0, 1).flatten(-2))
        gate, up = self.up(self.second_norm(state)).chunk(2, -1)
        found: torch.Tensor = state + self.down(functional.silu(gate) * up) / LOOPS
        return found


class Looper(nn.Module):
    def __init__(self, block: Block, loops: int) -> None:
        super().__init__()
        self.block, self.loops = block, loops

    def forward(self, injected: torch.Tensor) -> torch.Tensor:
        state = injected
        for _ in range(self.loops):
            state = self.block(state, injected)
        return state


def block_of(size: int, device: torch.device, dtype: torch.dtype) -> Block:
    """The block whose weights come nearest to `size` bytes from below, at least one head wide."""
    a_width = (3 + 1 + 2 * EXPANSION + EXPANSION) * dtype.itemsize
    width = max(HEAD, int((size / a_width) ** 0.5) // HEAD * HEAD)
    with torch.device("meta"):
        block = Block(width).to(dtype).eval()
    if device.type == "meta":
        return block
    block.to_empty(device=device)
    for parameter in block.parameters():
        parameter.data.copy_(random_rows(parameter.shape, device, dtype) if parameter.ndim > 1 else torch.tensor(1.0))
    return block


def block_bytes(block: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in block.parameters())


def measure(
    sizes: Sequence[int], device: torch.device, dtype: torch.dtype, time: Share, variants: Sequence[str]
) -> list[Looped]:
    """Eager at every size; what must be compiled first at the smallest and the largest only, where the time allows."""
    ends = (sizes[0], sizes[-1]) if sizes else ()
    wanted = [(size, "eager") for size in sizes]
    wanted += [(size, name) for name in variants if name != "eager" for size in dict.fromkeys(ends)]
    found, dearest = [], COMPILING
    for size, name in wanted:
        share, began = time.take(), perf_counter()
        if name != "eager" and time.left < dearest:
            reason = f"left out: it takes {dearest:.0f} s and {time.left:.0f} were left; give more --seconds"
            found.append(Looped(_bytes_of(size, dtype), name, 0, 0, 0, 0, 0, reason))
            continue
        found.append(_measured(size, device, dtype, perf_counter() + share, name))
        if name == "compiled":
            dearest = perf_counter() - began
    return found


COMPILING = 15.0
"""Seconds that compiling and measuring a block takes, until one was measured."""


def _bytes_of(size: int, dtype: torch.dtype) -> int:
    return block_bytes(block_of(size, torch.device("meta"), dtype))


@torch.inference_mode()
def _measured(size: int, device: torch.device, dtype: torch.dtype, ends: float, variant: str) -> Looped:
    block = block_of(size, device, dtype)
    injected = torch.ones(TOKENS, block.norm.weight.numel(), device=device, dtype=dtype)
    try:
        one, several = (VARIANTS[variant](Looper(block, loops), injected) for loops in (1, LOOPS))
        pairs = Pairs(one, several, device, least=5, ends=ends)
    except Exception as error:  # torch.compile needs a compiler, graphs a GPU: the table says what is missing here
        return Looped(block_bytes(block), variant, 0, 0, 0, 0, 0, f"{type(error).__name__}: {_first_line(error)}")
    return Looped(block_bytes(block), variant, *pairs.medians, *pairs.ratio())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def _eager(model: nn.Module, injected: torch.Tensor) -> Work:
    return lambda: model(injected)


def _compiled(model: nn.Module, injected: torch.Tensor) -> Work:
    compiled = torch.compile(model, dynamic=False)
    compiled(injected)
    return lambda: compiled(injected)


def _graph(model: nn.Module, injected: torch.Tensor) -> Work:
    if injected.device.type != "cuda":
        raise RuntimeError("graphs of launches exist on GPUs only")
    model(injected)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(injected)
    return graph.replay


VARIANTS: Mapping[str, Callable[[nn.Module, torch.Tensor], Work]] = {
    "eager": _eager,
    "compiled": _compiled,
    "graph": _graph,
}


@torch.inference_mode()
def kernel_times(size: int, device: torch.device, dtype: torch.dtype) -> list[tuple[str, float, int]]:
    """Name, seconds and calls of the ops of eight loops, the dearest first, as torch's profiler tells them."""
    from torch.profiler import ProfilerActivity, profile

    block = block_of(size, device, dtype)
    work = _eager(Looper(block, LOOPS), torch.ones(TOKENS, block.norm.weight.numel(), device=device, dtype=dtype))
    work()
    on_gpu = device.type == "cuda"
    # The profiler's own library prints lines of its own there, which nobody can switch off from Python.
    with silent_stderr(), profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        work()
    events: list[Any] = list(seen.key_averages())
    spent = [(e.key, (e.self_device_time_total if on_gpu else e.self_cpu_time_total) / 1e6, e.count) for e in events]
    return sorted(spent, key=lambda each: -each[1])[:8]
