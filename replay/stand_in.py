"""Rows that are not involved, replayed as stand-ins of equal shape.

A dense row's numbers depend on the shape of the batch, not on what its neighbours hold (design rule 10), so a stand-in
has the row's lengths, seeded token ids, and a block table that points at one scratch block throughout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.guards.step import SequenceStart
from checkengine.replay.executor import ReplayStep
from checkengine.replay.memory import MemoryImage
from checkengine.replay.record import Ints
from checkengine.replay.recorded import row_slices


@dataclass(frozen=True, slots=True)
class Scratch:
    """Three blocks in a row: stand-ins read and write the middle one, and a kernel that reads past its end finds
    memory there too."""

    blocks: Ints

    @property
    def block(self) -> int:
        return int(self.blocks[1])


def with_scratch(image: MemoryImage) -> tuple[MemoryImage, Scratch]:
    """The image and three zeroed blocks whose numbers touch none of its own."""
    first = int(image.blocks.max(initial=0)) + 2
    blocks = np.arange(first, first + 3, dtype=np.int32)
    tensors = {
        name: torch.cat([tensor, torch.zeros((3, *tensor.shape[1:]), dtype=tensor.dtype)])
        for name, tensor in image.tensors.items()
    }
    joined = np.concatenate([image.blocks, blocks]).astype(np.int32)
    return MemoryImage(image.block_size, joined, tensors, image.layers), Scratch(blocks)


def with_stand_ins(
    step: ReplayStep, involved: NDArray[np.bool_], scratch: Scratch, block_size: int, vocabulary: int
) -> ReplayStep:
    """The step with every row that is not involved replaced. `vocabulary`: token ids are drawn below it."""
    record = step.record
    tokens = record.token_ids.copy()
    tables, starts, outputs = [], dict(step.starts), dict(step.outputs)
    random = np.random.default_rng([record.step, vocabulary])
    for row, (handle, start, count, where) in enumerate(row_slices(record)):
        if involved[row]:
            tables.append(step.block_tables[row])
            continue
        tokens[where] = random.integers(0, vocabulary, count)
        length = max(len(step.block_tables[row]), -(-(start + count) // block_size))
        tables.append(np.full(length, scratch.block, np.int32))
        starts[handle] = SequenceStart(handle, f"stand-in {handle}", sampling={"temperature": 0.0})
        outputs[handle] = ()
    return replace(step, record=replace(record, token_ids=tokens), block_tables=tables, starts=starts, outputs=outputs)
