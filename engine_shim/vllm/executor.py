"""vLLM as replay's executor: recorded steps on vLLM's own worker, its own kernels, and memory of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.logits import row_stats
from checkengine.engine_shim.vllm.attention import Attention, exact_attention, row_spans
from checkengine.engine_shim.vllm.cpu_cache import cache_layers, cache_writer
from checkengine.engine_shim.vllm.environment import ground
from checkengine.engine_shim.vllm.generator import unpack_states
from checkengine.engine_shim.vllm.kv_cache import PackedCache
from checkengine.engine_shim.vllm.layer_hashes import LayerHashes
from checkengine.engine_shim.vllm.ledger import KERNEL, NO_TOKEN
from checkengine.engine_shim.vllm.lone_worker import lone_worker
from checkengine.engine_shim.vllm.sampling import parameters_from
from checkengine.engine_shim.vllm.step_messages import StepMessages, compact, rows_of
from checkengine.replay.executor import CannotReplayError, ReplayError, ReplayStep, StepOutput
from checkengine.replay.memory import MemoryImage
from checkengine.replay.op_call import OpCall

Ints = NDArray[np.int32]
NULL_BLOCK = 0
"""vLLM's block tables end in it."""
FLOAT64 = "float64"


class VllmMemory:
    """KV memory of some blocks: the null block first, then the others in the order of their numbers."""

    def __init__(self, cache: PackedCache, blocks: Ints) -> None:
        self.cache = cache
        self.blocks = blocks
        self.locate = compact(blocks)

    def slots(self, slots: Ints) -> Ints:
        size = self.cache.shape.block_size
        return (self.locate(slots // size) * size + slots % size).astype(np.int32)


class VllmExecutor:
    """Kernels: `vllm`, whatever the installed version runs, and `float64`: attention in float64 on the same pages, and
    everything else vLLM's."""

    name = "vllm"
    granularity = "attention and hidden state per layer (eager mode); logits only where layers are compiled"
    kernels: tuple[str, ...] = (KERNEL, FLOAT64)
    reference = FLOAT64
    row_independent = True

    def __init__(self) -> None:
        self._worker: Any = None

    def load(self, environment: Mapping[str, Any]) -> None:
        """Starts vLLM in this process (some ten seconds). Raises CannotReplayError, WeightsChangedError."""
        self._states = unpack_states(environment["generator"]) if environment.get("generator") else {}
        self._worker = lone_worker(environment)
        self._runner = self._worker.model_runner
        self._layers = cache_layers(self._runner)
        held = [layer.kv_cache for layer in self._layers.values()]
        self._cache = PackedCache(held, cache_writer(next(iter(self._layers.values()))))
        self._messages = StepMessages(self._worker)
        self._attention = Attention(self._runner, self._layers)

    def changed(self, environment: Mapping[str, Any]) -> list[str]:
        here = {**ground(), "threads": torch.get_num_threads()}
        return [
            f"{key} was {environment.get(key, 'not recorded')}, is {value}"
            for key, value in here.items()
            if environment.get(key) != value
        ]

    def memory(self, image: MemoryImage) -> VllmMemory:
        """ReplayError where the image has another shape than this model's memory."""
        shape = self._cache.shape
        wanted = (len(self._layers), shape.block_size, shape.heads, shape.dim)
        tensors = [image.tensors.get(f"full.{part}") for part in ("key", "value")]
        if any(
            tensor is None or tuple(tensor.shape[1:]) != wanted or tensor.dtype != shape.dtype for tensor in tensors
        ):
            raise ReplayError(f"the record's KV pages are not of this model: its layers hold {wanted} of {shape.dtype}")
        blocks = np.union1d(image.blocks, [NULL_BLOCK]).astype(np.int32)
        layers = [
            torch.zeros((len(blocks), shape.heads, shape.block_size, 2 * shape.dim), dtype=shape.dtype)
            for _ in self._layers
        ]
        memory = VllmMemory(self._cache.like(layers), blocks)
        slots = (image.blocks[:, None] * shape.block_size + np.arange(shape.block_size)).astype(np.int32).ravel()
        self.restore(memory, slots, {name: by_slot(tensor) for name, tensor in image.tensors.items()})
        return memory

    def copy(self, memory: VllmMemory) -> VllmMemory:
        return VllmMemory(self._cache.like([layer.clone() for layer in memory.cache.layers]), memory.blocks)

    def write_slots(self, memory: VllmMemory, slots: Ints, pattern: float, layers: Sequence[int] | None = None) -> None:
        memory.cache.fill_slots(memory.slots(slots), pattern, layers)

    def restore(self, memory: VllmMemory, slots: Ints, tensors: Mapping[str, torch.Tensor]) -> None:
        memory.cache.write_slots(memory.slots(slots), tensors)

    def run(
        self, step: ReplayStep, memory: VllmMemory, *, kernel: str | None = None, hashes: bool = False
    ) -> StepOutput:
        kernel = kernel or step.record.kernel
        if kernel not in self.kernels:
            raise CannotReplayError(f"no kernel named {kernel!r} in vLLM's executor; it has {', '.join(self.kernels)}")
        ops = LayerHashes(self._runner.model, step.record.query_lengths) if hashes else None
        try:
            with self._attention.exact(memory.cache) if kernel == FLOAT64 else nullcontext():
                logits, sampled = self._execute(step, memory)
        finally:
            if ops is not None:
                ops.remove()
        return self._outcome(step, logits, sampled, ops)

    def calls(
        self, step: ReplayStep, memory: VllmMemory, *, rows: Sequence[int], layers: Sequence[int] | None = None
    ) -> list[tuple[OpCall, torch.Tensor]]:
        """See OpExecutor."""
        if step.record.kernel != KERNEL:
            raise CannotReplayError(f"calls are taken from the kernel {KERNEL}, not from {step.record.kernel!r}")
        found: list[tuple[OpCall, torch.Tensor]] = []
        everything = torch.arange(len(memory.blocks))

        def seen(layer: int, query: torch.Tensor, metadata: Any, output: torch.Tensor) -> None:
            if layers is not None and layer not in layers:
                return
            pages = memory.cache.pages(layer, everything)
            spans = row_spans(metadata)
            for row in rows:
                call = self._attention.call_of(layer, row, query, metadata, pages, memory.blocks, KERNEL)
                found.append((call, output[slice(*spans[row])].reshape(call.query.shape).clone()))

        with self._attention.watched(seen):
            self._execute(step, memory)
        return found

    def attend(self, call: OpCall, *, kernel: str | None = None) -> torch.Tensor:
        """See OpExecutor."""
        if (kernel or call.kernel) == FLOAT64:
            return exact_attention(owned_pages(call))
        return self._attention.alone(call, self._cache.packed(call.keys, call.values))

    def _execute(self, step: ReplayStep, memory: VllmMemory) -> tuple[torch.Tensor, list[list[int]]]:
        """Raw logits, (rows, vocabulary), and sampled tokens, both aligned with the step's rows."""
        rows = rows_of(step, memory.locate)
        for layer, cache in zip(self._layers.values(), memory.cache.layers, strict=True):
            layer.kv_cache = cache
        if (state := self._states.get(step.record.step)) is not None:
            torch.random.set_rng_state(torch.from_numpy(state.copy()))
        with watched_logits(self._runner.model) as logits:
            self._worker.execute_model(self._messages.message(rows, parameters_from))
        output = self._worker.sample_tokens(None)
        ready = output.get_output() if hasattr(output, "get_output") else output
        self._worker.execute_model(self._messages.finished(rows))
        if list(ready.req_ids) != [row.name for row in rows]:
            raise ReplayError("vLLM ran the rows in another order than recorded")
        return logits[0], ready.sampled_token_ids

    def _outcome(
        self, step: ReplayStep, logits: torch.Tensor, sampled: Sequence[Sequence[int]], ops: LayerHashes | None
    ) -> StepOutput:
        samples = step.record.samples
        tokens = [ids[-1] for ids, chosen in zip(sampled, samples.tolist(), strict=True) if chosen]
        for index, handle in enumerate(step.record.sampling_handles.tolist()):
            # Logits tell such a row apart by their fingerprint; a token drawn in another way would tell nothing.
            if NO_TOKEN in step.starts[handle].sampling and len(step.record.sampled):
                tokens[index] = int(step.record.sampled[index])
        chosen_rows = logits[torch.from_numpy(samples)]
        return StepOutput(row_stats(chosen_rows, "full"), np.array(tokens, np.int32), ops.entries if ops else [])


@contextmanager
def watched_logits(model: Any) -> Iterator[list[torch.Tensor]]:
    """Raw logits are what the model computes, before anything of the sampler's."""
    compute, seen = model.compute_logits, []

    def observed(*arguments: Any, **named: Any) -> Any:
        logits = compute(*arguments, **named)
        seen.append(logits.detach().clone())
        return logits

    model.compute_logits = observed
    try:
        yield seen
    finally:
        del model.compute_logits


def owned_pages(call: OpCall) -> OpCall:
    """The call in float64, with its own pages only, in the order of positions."""
    places = torch.from_numpy(np.searchsorted(call.blocks, call.table).astype(np.int64))
    sinks = None if call.sinks is None else call.sinks.double()
    keys, values = call.keys[places].double(), call.values[places].double()
    return replace(call, query=call.query.double(), keys=keys, values=values, sinks=sinks)


def by_slot(tensor: torch.Tensor) -> torch.Tensor:
    """(blocks, layers, block_size, heads, dim) as (slots, layers, heads, dim)."""
    return tensor.transpose(1, 2).reshape(-1, tensor.shape[1], *tensor.shape[3:])
