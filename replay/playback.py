"""Run a window step by step on its own copy of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.replay.executor import Executor, ReplayStep, StepOutput
from checkengine.replay.memory import UndoEntry
from checkengine.replay.window import Window, WindowStep

Bits = tuple[tuple[str | int, ...], ...]
"""What must be equal for two runs of a step to be bit-equal, one tuple an involved row or op."""


def output_bits(step: WindowStep, output: StepOutput) -> Bits:
    """Fingerprints and tokens of the involved sampling rows."""
    chosen = np.flatnonzero(step.sampling_involved)
    prints = output.stats.fingerprint
    return tuple(("logits", int(i), 0 if prints is None else int(prints[i]), int(output.tokens[i])) for i in chosen)


def op_bits(step: WindowStep, output: StepOutput) -> Bits:
    """Hashes of the involved rows' ops, in the order of execution."""
    return tuple((h.op, h.layer, h.row, h.fingerprint) for h in output.hashes if step.involved[h.row])


def all_bits(step: WindowStep, output: StepOutput) -> Bits:
    return op_bits(step, output) + output_bits(step, output)


class Outputs:
    """Output tokens by handle as a replay that feeds itself knows them."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._tokens: dict[int, dict[int, int]] = {handle: {} for handle in window.starts}

    def own_inputs(self, step: WindowStep) -> ReplayStep:
        """The step with each involved row's input tokens replaced by what this replay sampled at their positions."""
        record = step.replay.record
        tokens = record.token_ids.copy()
        ends = np.cumsum(record.query_lengths)
        for row in np.flatnonzero(step.involved):
            own = self._tokens[int(record.handles[row])]
            first, end, start = int(ends[row] - record.query_lengths[row]), int(ends[row]), int(record.starts[row])
            for index in range(first, end):
                tokens[index] = own.get(start + index - first, tokens[index])
        return replace(step.replay, record=replace(record, token_ids=tokens), outputs=self._outputs(step))

    def _outputs(self, step: WindowStep) -> dict[int, list[int]]:
        outputs = {handle: list(tokens) for handle, tokens in step.replay.outputs.items()}
        for handle, own in self._tokens.items():
            prompt = len(self._window.starts[handle].prompt_tokens)
            for position, token in own.items():
                if handle in outputs and position - prompt < len(outputs[handle]):
                    outputs[handle][position - prompt] = token
        return outputs

    def note(self, step: WindowStep, output: StepOutput) -> None:
        record = step.replay.record
        sampling = np.flatnonzero(record.samples)
        for index in np.flatnonzero(step.sampling_involved):
            row = sampling[index]
            position = int(record.starts[row] + record.query_lengths[row])
            self._tokens[int(record.handles[row])][position] = int(output.tokens[index])


class Playback:
    """One replay. `fill` writes a number into every slot that no involved sequence owns, as soon as it is nobody's."""

    def __init__(
        self,
        executor: Executor,
        window: Window,
        *,
        kernel: str | None = None,
        fill: float | None = None,
        free: bool = False,
        hashes: bool = False,
        memory: Any = None,
    ) -> None:
        self.executor = executor
        self.window = window
        self.memory = executor.memory(window.image) if memory is None else memory
        self._kernel = kernel
        self._fill = fill
        self._hashes = hashes
        self._own = Outputs(window) if free else None
        self._owned = window.slots

    def prepare(self, step: WindowStep) -> None:
        """Bring memory to where it was just before this step computes."""
        if self._fill is not None:
            left = np.setdiff1d(self._owned, step.live, assume_unique=True).astype(np.int32)
            self.executor.write_slots(self.memory, left, self._fill)
            self._owned = step.owned
        if step.neighbours is not None:
            self._restore(step.neighbours, slice(None) if self._fill is None else step.neighbours_read)

    def _restore(self, entry: UndoEntry, chosen: slice | NDArray[np.int64]) -> None:
        slots = entry.slots[chosen]
        if len(slots):
            index = chosen if isinstance(chosen, slice) else torch.from_numpy(chosen)
            self.executor.restore(self.memory, slots, {name: bytes_[index] for name, bytes_ in entry.tensors.items()})

    def run(self, step: WindowStep) -> StepOutput:
        self.prepare(step)
        replay = step.replay if self._own is None else self._own.own_inputs(step)
        output = self.executor.run(replay, self.memory, kernel=self._kernel, hashes=self._hashes)
        if self._own is not None:
            self._own.note(step, output)
        return output

    def __iter__(self) -> Iterator[tuple[WindowStep, StepOutput]]:
        for step in self.window.steps:
            yield step, self.run(step)
