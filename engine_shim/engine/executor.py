"""The embedded engine as replay's executor: recorded steps on memory of their own, with the weights of a model."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.logits import row_stats
from checkengine.engine_shim.engine.batch import PackedBatch
from checkengine.engine_shim.engine.environment import ground, model_name, weights_digest
from checkengine.engine_shim.engine.kv_memory import CompactMemory
from checkengine.engine_shim.engine.layer_inputs import layer_inputs
from checkengine.engine_shim.engine.load import load_model
from checkengine.engine_shim.engine.op_calls import CallRecorder, attend, widened
from checkengine.engine_shim.engine.op_hashes import OpHashes, OpOutput
from checkengine.engine_shim.engine.probe import prepare
from checkengine.engine_shim.engine.request import SamplingParameters
from checkengine.engine_shim.engine.runner import ModelRunner
from checkengine.engine_shim.engine.sampler import SamplingRow, masked_tokens, sample_rows
from checkengine.engine_shim.faults import build_faults
from checkengine.engine_shim.faults.fault import Fault
from checkengine.engine_shim.models import MODEL_VARIABLE, ModelError, recorded_model
from checkengine.replay.executor import CannotReplayError, ReplayStep, StepOutput, WeightsChangedError
from checkengine.replay.memory import MemoryImage
from checkengine.replay.op_call import LayerInputs, OpCall

Ints = NDArray[np.int32]
FLOAT64 = "float64"
MOST_THREADS = 1024
"""A record that names more was tampered with."""

_loaded: dict[tuple[str, str, str], Any] = {}
"""By name, dtype and the directory that --model gives: several bundles of one model are replayed in one process."""


class ReplayMemory:
    """Holds the KV memory; the float64 kernel widens it in place."""

    def __init__(self, kv: CompactMemory) -> None:
        self.kv = kv

    def widen(self) -> CompactMemory:
        if self.kv.layout.dtype != torch.float64:
            self.kv = CompactMemory(self.kv.image(self.kv.numbers), torch.float64)
        return self.kv


class EmbeddedExecutor:
    """Kernels: `paged` (production; planted faults act on it), `reference` and `float64`, which have none."""

    name = "embedded"
    granularity = "attention and hidden state per layer"
    kernels: tuple[str, ...] = ("paged", "reference", FLOAT64)
    reference = "reference"

    def __init__(self) -> None:
        self._model: Any = None
        self._wide: Any = None
        self._faults: list[Fault] = []
        self._threads: int | None = None

    @classmethod
    def over(cls, model: Any, environment: Mapping[str, Any]) -> EmbeddedExecutor:
        """Over a live engine's weights, with memory of its own: for audits while the engine serves."""
        executor = cls()
        executor._take(model, environment)
        return executor

    def load(self, environment: Mapping[str, Any]) -> None:
        """Raises CannotReplayError where the model is not here, WeightsChangedError where it is another one."""
        model = cached_model(str(environment.get("model", "")), str(environment.get("dtype", "float32")))
        refuse_other_weights(model, environment)
        self._take(model, environment)

    def changed(self, environment: Mapping[str, Any]) -> list[str]:
        here = ground()
        return [
            f"{key} was {environment.get(key, 'not recorded')}, is {value}"
            for key, value in here.items()
            if environment.get(key) != value
        ]

    def _take(self, model: Any, environment: Mapping[str, Any]) -> None:
        self._model, self._wide = model, None
        self._threads = threads_of(environment)
        try:
            self._faults = build_faults(environment.get("faults", ()))
        except (ValueError, TypeError) as error:
            raise CannotReplayError(f"the record's planted fault cannot be made again: {error}") from error

    def memory(self, image: MemoryImage) -> ReplayMemory:
        return ReplayMemory(CompactMemory(image))

    def copy(self, memory: ReplayMemory) -> ReplayMemory:
        return ReplayMemory(memory.kv.copy())

    def write_slots(
        self, memory: ReplayMemory, slots: Ints, pattern: float, layers: Sequence[int] | None = None
    ) -> None:
        memory.kv.write_slots(slots, pattern, layers)

    def restore(self, memory: ReplayMemory, slots: Ints, tensors: Mapping[str, torch.Tensor]) -> None:
        rows = torch.from_numpy(memory.kv.locate(slots // memory.kv.block_size).astype(np.int64))
        offsets = torch.from_numpy((slots % memory.kv.block_size).astype(np.int64))
        for name, tensor in memory.kv.tensors.items():
            tensor[rows, :, offsets] = tensors[name].to(tensor.dtype)

    def run(
        self, step: ReplayStep, memory: ReplayMemory, *, kernel: str | None = None, hashes: bool = False
    ) -> StepOutput:
        kernel = kernel or step.record.kernel
        self._refuse_kernel(kernel)
        wide = kernel == FLOAT64
        kv = memory.widen() if wide else memory.kv
        batch = PackedBatch.of_record(step.record, step.block_tables, kv.block_size)
        runner = ModelRunner(self._double() if wide else self._model, kv, "reference" if wide else kernel, self._faults)
        ops = OpHashes(batch.first_tokens) if hashes else None
        set_threads(self._threads)
        logits = runner.forward(batch, observer=ops)
        faults = self._faults if kernel == "paged" else ()
        tokens = sample_rows(logits, self._sampling_rows(step, logits, faults), faults)
        return StepOutput(row_stats(logits, "full"), tokens, ops.entries if ops else [])

    row_independent = True

    def calls(
        self, step: ReplayStep, memory: ReplayMemory, *, rows: Sequence[int], layers: Sequence[int] | None = None
    ) -> list[tuple[OpCall, torch.Tensor]]:
        """See OpExecutor."""
        kernel = step.record.kernel
        self._refuse_kernel(kernel)
        batch = PackedBatch.of_record(step.record, step.block_tables, memory.kv.block_size)
        recorder = CallRecorder(memory.kv, batch, kernel, self._faults, rows, layers)
        set_threads(self._threads)
        ModelRunner(self._model, memory.kv, kernel, self._faults).forward(batch, calls=recorder)
        return recorder.found

    def attend(self, call: OpCall, *, kernel: str | None = None) -> torch.Tensor:
        """See OpExecutor."""
        kernel = kernel or call.kernel
        self._refuse_kernel(kernel)
        set_threads(self._threads)
        return attend(widened(call), "reference") if kernel == FLOAT64 else attend(call, kernel)

    def output(self, step: ReplayStep, memory: ReplayMemory, *, op: str, layer: int, row: int) -> torch.Tensor:
        """See OutputExecutor."""
        kernel = step.record.kernel
        self._refuse_kernel(kernel)
        batch = PackedBatch.of_record(step.record, step.block_tables, memory.kv.block_size)
        first, last = batch.first_tokens[row : row + 2].tolist()
        observer = OpOutput(op, layer, first, last)
        set_threads(self._threads)
        ModelRunner(self._model, memory.kv, kernel, self._faults).forward(batch, observer=observer)
        if observer.kept is None:
            raise CannotReplayError(f"no op {op!r} of layer {layer} ran")
        return observer.kept

    def inputs(self, step: ReplayStep, memory: ReplayMemory, *, row: int) -> list[LayerInputs]:
        """See InputExecutor."""
        kernel = step.record.kernel
        self._refuse_kernel(kernel)
        batch = PackedBatch.of_record(step.record, step.block_tables, memory.kv.block_size)
        set_threads(self._threads)
        reference = memory.kv.copy()
        return layer_inputs(ModelRunner(self._model, memory.kv, kernel, self._faults), reference, batch, row)

    def _refuse_kernel(self, kernel: str) -> None:
        if kernel not in self.kernels:
            raise CannotReplayError(
                f"no kernel named {kernel!r} in the embedded engine; it has {', '.join(self.kernels)}"
            )

    def _double(self) -> Any:
        if self._wide is None:
            self._wide = copy.deepcopy(self._model).double()
        return self._wide

    def _sampling_rows(self, step: ReplayStep, logits: torch.Tensor, faults: Sequence[Fault]) -> list[SamplingRow]:
        rows = []
        for row, handle in enumerate(step.record.sampling_handles.tolist()):
            start, output = step.starts[handle], step.outputs[handle]
            position = len(start.prompt_tokens) + len(output)
            masked = masked_tokens(faults, logits[row], position, output, start.stop_tokens) if faults else ()
            sampling = SamplingParameters.model_validate(dict(start.sampling))
            rows.append(SamplingRow(sampling, start.prompt_tokens, output, masked))
        return rows


def cached_model(name: str, dtype: str) -> Any:
    """Raises CannotReplayError where the model is not here, is damaged, or has no such dtype."""
    key = name, dtype, os.environ.get(MODEL_VARIABLE, "")
    if key not in _loaded:
        number = getattr(torch, dtype, None)
        if not isinstance(number, torch.dtype):
            raise CannotReplayError(f"the record names the dtype {dtype!r}, which torch does not have")
        try:
            model, _ = load_model(recorded_model(name), number)
        except (ModelError, OSError, ValueError, KeyError, RuntimeError) as error:
            raise CannotReplayError(f"the record's model cannot be loaded: {error}") from error
        prepare(model)
        _loaded[key] = model
    return _loaded[key]


def refuse_other_weights(model: Any, environment: Mapping[str, Any]) -> None:
    recorded = environment.get("weights_digest")
    if recorded is None:
        raise CannotReplayError("the record names no weights digest: whether these are its weights cannot be told")
    found = weights_digest(model)
    if found != recorded:
        raise WeightsChangedError(
            f"weights changed: the record was made with {str(recorded)[:12]}…, "
            f"and {model_name(model)} here is {found[:12]}…"
        )


def threads_of(environment: Mapping[str, Any]) -> int | None:
    threads = environment.get("threads")
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise CannotReplayError(f"the record names {threads!r} threads, where 1 to {MOST_THREADS} can be run")
    return threads


def set_threads(wanted: int | None) -> None:
    """Of this thread, as recorded: how a product is split decides its bits. Not set back: a live engine beside us
    runs with the same number, and BLAS libraries take it for the whole process."""
    if wanted and wanted != torch.get_num_threads():
        torch.set_num_threads(wanted)
