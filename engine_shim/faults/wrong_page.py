"""Block tables that send the attention kernel to a page which is not the row's."""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from checkengine.engine_shim.faults.fault import Fault, Ints, of_layer
from checkengine.engine_shim.faults.pages import with_page
from checkengine.replay.judge.fault_class import FaultClass


class _Redirected(Fault):
    fault_class: ClassVar[FaultClass] = FaultClass.WRONG_PAGE
    block_size: int
    layers: tuple[int, ...]

    def page(self, lengths: Ints, query_lengths: Ints) -> NDArray[np.int64]:
        """Shape (rows,): which page of each row is read elsewhere; negative for none."""
        raise NotImplementedError

    def target(self, block: int, own: Ints) -> int:
        """The block read in place of `block`; `own` are the row's."""
        raise NotImplementedError

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        page = self.page(lengths, query_lengths)
        rows = np.flatnonzero(page >= 0)
        if not of_layer(layer, self.layers) or not len(rows):
            return tables, lengths
        blocks = [self.target(int(tables[row, page[row]]), tables[row]) for row in rows]
        return with_page(tables, rows, page[rows], np.array(blocks, np.int32)), lengths


class StaleTable(_Redirected):
    """A row's second page is read from the next block up in memory that is not the row's."""

    name: ClassVar[str] = "stale_table"
    models: ClassVar[str] = (
        "a block is freed on retract and still read through an old table: sgl-project/sglang#38319; "
        "stale block-table rows in padded batches: vllm-project/vllm#37728"
    )

    def __init__(self, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        self.block_size, self.layers = block_size, tuple(layers)

    def page(self, lengths: Ints, query_lengths: Ints) -> NDArray[np.int64]:
        return np.where((query_lengths == 1) & (lengths > 2 * self.block_size), 1, -1)

    def target(self, block: int, own: Ints) -> int:
        return next(other for other in itertools.count(block + 1) if other not in own)


class NeighboursPage(_Redirected):
    """A row's first page is read from the next block down in memory that is not the row's: mostly another
    sequence's."""

    name: ClassVar[str] = "neighbours_page"
    models: ClassVar[str] = (
        "KV is read outside of the request's range, one request's NaN breaks others: flashinfer-ai/flashinfer#942; "
        "other users' tokens in an answer: NVIDIA/TensorRT-LLM#8813"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.FOREIGN_PAGE

    def __init__(self, minimum_length: int = 0, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        self.minimum_length, self.block_size, self.layers = minimum_length, block_size, tuple(layers)

    def page(self, lengths: Ints, query_lengths: Ints) -> NDArray[np.int64]:
        return np.where((query_lengths == 1) & (lengths >= max(self.minimum_length, self.block_size)), 0, -1)

    def target(self, block: int, own: Ints) -> int:
        below = (other for other in range(block - 1, -1, -1) if other not in own)
        return next(below, int(own.max()) + 1)


class PaddingEntry(_Redirected):
    """The entry of a page that a row has just been given is still padding, block 0, when attention reads it."""

    name: ClassVar[str] = "padding_entry"
    models: ClassVar[str] = "the kernel gathers slot 0 for entries that are not valid: vllm-project/vllm#57156"

    def __init__(self, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        self.block_size, self.layers = block_size, tuple(layers)

    def page(self, lengths: Ints, query_lengths: Ints) -> NDArray[np.int64]:
        fresh = (query_lengths == 1) & (lengths % self.block_size == 1) & (lengths > self.block_size)
        return np.where(fresh, lengths // self.block_size, -1)

    def target(self, block: int, own: Ints) -> int:
        return 0


class RepeatedPage(_Redirected):
    """A row's second page is read from its first page's block: one of its own pages twice, another never."""

    name: ClassVar[str] = "repeated_page"
    models: ClassVar[str] = (
        "slots taken to be contiguous under a prefix cache: huggingface/text-generation-inference#2711"
    )

    def __init__(self, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        self.block_size, self.layers = block_size, tuple(layers)

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        rows = np.flatnonzero((query_lengths == 1) & (lengths > 2 * self.block_size))
        if not of_layer(layer, self.layers) or not len(rows):
            return tables, lengths
        return with_page(tables, rows, np.ones(len(rows), np.int64), tables[rows, 0]), lengths
