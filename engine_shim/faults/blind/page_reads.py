"""Faults in which pages a row reads: one too many, one twice, nobody's, another's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from checkengine.engine_shim.faults.blind.row_attention import acts_in
from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class PageEndOverRead(Fault):
    """A decode row whose last page is just full reads `extra` slots of the page behind it in memory, when the batch
    has at least `minimum_rows` rows: smaller batches go through another kernel."""

    minimum_rows: int = 4
    extra: int = 1
    block_size: int = 32

    name: ClassVar[str] = "page_end_over_read"
    fault_class: ClassVar[FaultClass] = FaultClass.OVER_READ
    models: ClassVar[str] = "V of tokens beyond the context multiplied, loop one too far: vllm-project/vllm#641, #936"

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        hit = (query_lengths == 1) & (lengths % self.block_size == 0)
        if len(lengths) < self.minimum_rows or not hit.any():
            return tables, lengths
        tables = np.pad(tables, ((0, 0), (0, 1)), constant_values=-1)
        for row in np.flatnonzero(hit):
            pages = lengths[row] // self.block_size
            tables[row, pages] = tables[row, pages - 1] + 1
        return tables, np.where(hit, lengths + min(self.extra, self.block_size), lengths).astype(np.int32)


@dataclass(frozen=True)
class SplitTailUnderRead(Fault):
    """The number of splits is rounded down where the tail behind the last whole split has at most `tail` slots, so
    nobody reads that tail; only for the last row of the batch, only from two splits on."""

    split: int = 64
    tail: int = 2
    every: int = 1
    phase: int = 0

    name: ClassVar[str] = "split_tail_under_read"
    fault_class: ClassVar[FaultClass] = FaultClass.UNDER_READ
    models: ClassVar[str] = "splits of paged KV chosen wrongly by themselves: pytorch/torchtitan#3235"

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        left = int(lengths[-1]) % self.split
        short = 0 < left <= self.tail and lengths[-1] >= 2 * self.split
        if query_lengths[-1] != 1 or not short or not acts_in(layer, self.every, self.phase):
            return tables, lengths
        lengths = lengths.copy()
        lengths[-1] -= left
        return tables, lengths


@dataclass(frozen=True)
class NullBlockRead(Fault):
    """In every `every`th layer, a decode row that has just begun a page reads block 0 in its place: the new entry of
    the table is not there yet, and invalid entries are gathered from block 0."""

    every: int = 5
    phase: int = 4
    minimum_length: int = 2
    block_size: int = 32

    name: ClassVar[str] = "null_block_read"
    fault_class: ClassVar[FaultClass] = FaultClass.WRONG_PAGE
    models: ClassVar[str] = "kernel gathers slot 0 for invalid ids: vllm-project/vllm#57156, PR #39444"

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        hit = (query_lengths == 1) & (lengths % self.block_size == 1) & (lengths >= self.minimum_length)
        if not acts_in(layer, self.every, self.phase) or not hit.any():
            return tables, lengths
        tables = tables.copy()
        tables[hit, lengths[hit] // self.block_size] = 0
        return tables, lengths


@dataclass(frozen=True)
class DuplicateContextPage(Fault):
    """A prefill chunk after a prompt's first reads the first page of its context twice and the second never, where
    the context has at least `minimum_pages` pages."""

    minimum_pages: int = 2
    block_size: int = 32

    name: ClassVar[str] = "duplicate_context_page"
    fault_class: ClassVar[FaultClass] = FaultClass.WRONG_PAGE
    models: ClassVar[str] = "cascade of chunks merges wrongly, worse as chunks shrink: vllm-project/vllm#26042"

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        context = (lengths - query_lengths) // self.block_size
        hit = (query_lengths > 1) & (context >= max(self.minimum_pages, 2))
        if not hit.any():
            return tables, lengths
        tables = tables.copy()
        tables[hit, 1] = tables[hit, 0]
        return tables, lengths


@dataclass(frozen=True)
class TableStride(Fault):
    """In a batch of an odd number of rows, at least `minimum_rows`, the widest decode row finds its pages one entry
    too far on: a whole page off, and its last entry is the padding, read at -1. One layer only."""

    layer: int = 0
    minimum_rows: int = 3
    block_size: int = 32

    name: ClassVar[str] = "table_stride"
    fault_class: ClassVar[FaultClass] = FaultClass.WRONG_PAGE
    models: ClassVar[str] = "stale or shifted block-table rows in padded batches: vllm-project/vllm PR #37728"

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        rows = len(lengths)
        row = int(np.argmax(np.where(query_lengths == 1, lengths, 0)))
        if layer != self.layer or rows % 2 == 0 or rows < self.minimum_rows or query_lengths[row] != 1:
            return tables, lengths
        pages = -(-int(lengths[row]) // self.block_size)
        shifted = tables.copy()
        shifted[row, : pages - 1] = tables[row, 1:pages]
        shifted[row, pages - 1] = -1
        return shifted, lengths


@dataclass(frozen=True)
class ForkedPrefix(Fault):
    """Where two rows share their first pages, the later row reads the first page behind the fork from the earlier
    one: the copy for its own branch never happened."""

    every: int = 1
    phase: int = 0
    minimum_shared: int = 1
    block_size: int = 32

    name: ClassVar[str] = "forked_prefix"
    fault_class: ClassVar[FaultClass] = FaultClass.FOREIGN_PAGE
    models: ClassVar[str] = "chunk enters the prefix tree while still owned: sgl-project/sglang#38319, PR #38355"

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        if not acts_in(layer, self.every, self.phase):
            return tables, lengths
        read = tables
        for row in range(1, len(tables)):
            for earlier in np.flatnonzero(tables[:row, 0] == tables[row, 0])[:1]:
                fork = int(np.argmax(tables[earlier] != tables[row]))
                pages = -(-lengths[[earlier, row]] // self.block_size)
                if tables[row, 0] >= 0 and self.minimum_shared <= fork < pages.min():
                    read = tables.copy() if read is tables else read
                    read[row, fork] = tables[earlier, fork]
        return read, lengths


@dataclass(frozen=True)
class NeighbourPage(Fault):
    """In a step that prefills and decodes at once, the last decode row reads page `page` of the row before it: the
    tables were gathered in the order of the step before."""

    page: int = 0
    minimum_rows: int = 2
    block_size: int = 32

    name: ClassVar[str] = "neighbour_page"
    fault_class: ClassVar[FaultClass] = FaultClass.FOREIGN_PAGE
    models: ClassVar[str] = "state lands in the last step's row order: vllm-project/vllm PR #53919"

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        decode = np.flatnonzero(query_lengths == 1)
        mixed = 1 < len(decode) < len(lengths) and len(lengths) >= self.minimum_rows
        if not mixed or (-(-lengths[decode[-2:]] // self.block_size) <= self.page).any():
            return tables, lengths
        tables = tables.copy()
        tables[decode[-1], self.page] = tables[decode[-2], self.page]
        return tables, lengths
