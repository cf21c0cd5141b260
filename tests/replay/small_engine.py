"""A small engine for replay's tests: two layers of real paged attention over a pool of recycled memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from checkengine.detectors.logits import row_stats
from checkengine.guards.finding import Finding
from checkengine.guards.step import SequenceStart
from checkengine.replay.capture import Capture
from checkengine.replay.executor import OpHash, ReplayError, ReplayStep, StepOutput
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.record import StepRecord
from checkengine.replay.recorded import RecordedWindow, pack_tables, row_slices

VOCABULARY, WIDTH, LAYERS, HEADS, DIM, BLOCK = 48, 16, 2, 2, 8, 4
Kind = Literal["none", "over_read", "masked_read", "nan_attention", "nan_head", "wrong_scale", "nondeterministic"]
_noise = itertools.count(1)


@dataclass(frozen=True)
class SmallFault:
    """Acts at rows whose length is `remainder` modulo the block size (None: at all rows), in one layer or all."""

    kind: Kind = "none"
    layer: int | None = None
    remainder: int | None = None

    def hits(self, kind: Kind, layer: int, length: int) -> bool:
        here = self.layer in (None, layer) and self.remainder in (None, length % BLOCK)
        return self.kind == kind and here


class SmallModel:
    def __init__(self, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=random) / shape[-1] ** 0.5

        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=random)
        self.positions = torch.randn(512, WIDTH, generator=random)
        self.query = [weights(WIDTH, HEADS * DIM) for _ in range(LAYERS)]
        self.key = [weights(WIDTH, DIM) for _ in range(LAYERS)]
        self.value = [weights(WIDTH, DIM) for _ in range(LAYERS)]
        self.out = [weights(HEADS * DIM, WIDTH) for _ in range(LAYERS)]
        self.head = torch.randn(WIDTH, VOCABULARY, generator=random)


class SmallMemory:
    def __init__(self, image: MemoryImage) -> None:
        self.row = {int(block): index for index, block in enumerate(image.blocks)}
        self.blocks = image.blocks
        self.tensors = {name: tensor.clone() for name, tensor in image.tensors.items()}

    def image(self, blocks: np.ndarray) -> MemoryImage:
        rows = [self.row[int(block)] for block in blocks]
        tensors = {name: tensor[rows].clone() for name, tensor in self.tensors.items()}
        return MemoryImage(BLOCK, blocks.astype(np.int32), tensors, {"kv": range(LAYERS)})

    def where(self, slots: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        missing = [slot for slot in slots if int(slot) // BLOCK not in self.row]
        if missing:
            raise ReplayError(f"slot {missing[0]} lies in no block of the image")
        rows = torch.tensor([self.row[int(slot) // BLOCK] for slot in slots], dtype=torch.long)
        return rows, torch.tensor([int(slot) % BLOCK for slot in slots], dtype=torch.long)


def attend(
    memory: SmallMemory, layer: int, queries: torch.Tensor, slots: list[int], fault: SmallFault, kernel: str
) -> torch.Tensor:
    """queries (count, heads, dim) at the last positions of `slots`; returns the same shape."""
    count, length = len(queries), len(slots)
    sharp = fault if kernel == "paged" else SmallFault()
    reading, masked = list(slots), 0
    if sharp.hits("over_read", layer, length):
        reading.append(slots[-1] + 1)
    elif sharp.hits("masked_read", layer, length):
        masked = -length % BLOCK
        reading += [slots[-1] + 1 + i for i in range(masked)]
    rows, offsets = memory.where(reading)
    keys, values = (
        memory.tensors["kv.key"][rows, layer, offsets, 0],
        memory.tensors["kv.value"][rows, layer, offsets, 0],
    )
    if kernel == "reference":
        queries, keys, values = queries.double(), keys.double(), values.double()
    scores = torch.einsum("qhd,kd->hqk", queries, keys) / DIM**0.5
    if sharp.hits("wrong_scale", layer, length):
        scores = scores * 1.5
    seen = (
        torch.arange(len(reading)) <= torch.arange(length - count, length).unsqueeze(1) + len(reading) - length - masked
    )
    seen[:, length : length + masked] = False
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    output = torch.einsum("hqk,kd->qhd", weights, values).float()
    if sharp.hits("nan_attention", layer, length):
        output[-1] = torch.nan
    if sharp.hits("nondeterministic", layer, length):
        output = output + 1e-6 * next(_noise)
    return output


def print_of(tensor: torch.Tensor) -> int:
    prints = row_stats(tensor.reshape(1, -1), "full", backend="torch").fingerprint
    assert prints is not None
    return int(prints[0])


def forward(
    model: SmallModel,
    memory: SmallMemory,
    record: StepRecord,
    tables: list[Any],
    fault: SmallFault,
    kernel: str,
    hash_ops: bool = False,
) -> tuple[torch.Tensor, list[OpHash]]:
    """Logits of the sampling rows and a hash of every row's attention."""
    hidden, slots, hashes = [], [], []
    for (_, start, count, where), table in zip(row_slices(record), tables, strict=True):
        positions = np.arange(start + count)
        slots.append((np.asarray(table)[positions // BLOCK] * BLOCK + positions % BLOCK).tolist())
        tokens = torch.from_numpy(record.token_ids[where].astype(np.int64))
        hidden.append(model.embedding[tokens] + model.positions[start : start + count])
    for layer in range(LAYERS):
        for x, own in zip(hidden, slots, strict=True):
            rows, offsets = memory.where(own[len(own) - len(x) :])
            memory.tensors["kv.key"][rows, layer, offsets, 0] = x @ model.key[layer]
            memory.tensors["kv.value"][rows, layer, offsets, 0] = x @ model.value[layer]
        for row, (x, own) in enumerate(zip(hidden, slots, strict=True)):
            queries = (x @ model.query[layer]).view(-1, HEADS, DIM)
            output = attend(memory, layer, queries, own, fault, kernel)
            if hash_ops:
                finite = bool(torch.isfinite(output).all())
                hashes.append(OpHash("attention", layer, row, print_of(output), finite))
            hidden[row] = x + torch.tanh(output.flatten(1) @ model.out[layer])
    last = [x[-1] for x, samples in zip(hidden, record.samples.tolist(), strict=True) if samples]
    logits = torch.stack(last) @ model.head if last else torch.empty(0, VOCABULARY)
    lengths = (record.starts + record.query_lengths)[record.samples].tolist()
    for index, length in enumerate(lengths):
        if kernel == "paged" and fault.hits("nan_head", -1, length):
            logits[index] = torch.nan
    return logits, hashes


class SmallExecutor:
    name = "small"
    granularity = "attention per layer"
    kernels = ("paged", "reference")
    reference = "reference"

    def __init__(self, model: SmallModel, fault: SmallFault) -> None:
        self.model, self.fault = model, fault
        self.differences: list[str] = []

    def load(self, environment: Mapping[str, Any]) -> None:
        """The model is given."""

    def changed(self, environment: Mapping[str, Any]) -> list[str]:
        return self.differences

    def memory(self, image: MemoryImage) -> SmallMemory:
        return SmallMemory(image)

    def copy(self, memory: SmallMemory) -> SmallMemory:
        return SmallMemory(memory.image(memory.blocks))

    def write_slots(self, memory: SmallMemory, slots: Any, pattern: float, layers: Sequence[int] | None = None) -> None:
        rows, offsets = memory.where(slots)
        for layer in range(LAYERS) if layers is None else layers:
            for tensor in memory.tensors.values():
                tensor[rows, layer, offsets] = pattern

    def restore(self, memory: SmallMemory, slots: Any, tensors: Mapping[str, torch.Tensor]) -> None:
        rows, offsets = memory.where(slots)
        for name, tensor in memory.tensors.items():
            tensor[rows, :, offsets] = tensors[name]

    def run(
        self, step: ReplayStep, memory: SmallMemory, *, kernel: str | None = None, hashes: bool = False
    ) -> StepOutput:
        kernel = kernel or step.record.kernel
        logits, ops = forward(self.model, memory, step.record, step.block_tables, self.fault, kernel, hashes)
        return StepOutput(row_stats(logits, "full", backend="torch"), greedy(logits), ops)


def greedy(logits: torch.Tensor) -> np.ndarray:
    return torch.argmax(logits, -1).numpy().astype(np.int32)


@dataclass
class Live:
    start: SequenceStart
    tokens: list[int]
    limit: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class SmallEngine:
    """Joins, leaves, chunks, skips and preempts at random; every free block holds what its last owner left there."""

    def __init__(
        self, fault: SmallFault | None = None, seed: int = 0, blocks: int = 40, stop: int | None = None
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.model, self.fault, self.pool = SmallModel(), fault or SmallFault(), blocks
        noise = torch.Generator().manual_seed(seed)
        shape = (blocks, LAYERS, BLOCK, 1, DIM)
        tensors = {f"kv.{name}": 3 * torch.randn(shape, generator=noise) for name in ("key", "value")}
        everything = np.arange(blocks, dtype=np.int32)
        self.memory = SmallMemory(MemoryImage(BLOCK, everything, tensors, {"kv": range(LAYERS)}))
        # The first and last block are nobody's, so that every block has a neighbour.
        self.free = list(range(1, blocks - 1))
        self.live: dict[int, Live] = {}
        self.starts: dict[int, SequenceStart] = {}
        self.records: list[StepRecord] = []
        self.tables: list[dict[int, np.ndarray]] = []
        self.undo: list[UndoEntry] = []
        self.histories: list[dict[int, np.ndarray]] = []
        self.stop = () if stop is None else (stop,)

    def submit(self, prompt: Sequence[int], limit: int) -> int:
        handle = len(self.starts)
        start = SequenceStart(handle, f"s{handle}", tuple(prompt), {"temperature": 0.0}, self.stop)
        self.live[handle] = Live(start, list(prompt), limit)
        self.starts[handle] = start
        return handle

    def run(self, steps: int, *, arrivals: float = 0.3, preemptions: float = 0.03, skips: float = 0.1) -> None:
        for _ in range(steps):
            if len(self.live) < 6 and (not self.live or self.random.random() < arrivals):
                self.submit(self.random.integers(0, VOCABULARY, int(self.random.integers(1, 14))), limit=24)
            if len(self.live) > 1 and self.random.random() < preemptions:
                self.release(self.live[int(self.random.choice(list(self.live)))])
            chosen = [s for s in self.live.values() if self.random.random() >= skips]
            self.step(chosen or list(self.live.values()))

    def release(self, sequence: Live) -> None:
        self.free += sequence.blocks
        sequence.blocks, sequence.computed = [], 0

    def step(self, chosen: list[Live]) -> None:
        rows = [(sequence, min(5, len(sequence.tokens) - sequence.computed)) for sequence in chosen]
        rows = [(sequence, count) for sequence, count in rows if self.allocate(sequence, sequence.computed + count)]
        if not rows:
            return self.release(chosen[-1])
        number = len(self.records)
        record = StepRecord(
            step=number,
            time_ns=number,
            handles=np.array([s.start.handle for s, _ in rows], np.int32),
            query_lengths=np.array([count for _, count in rows], np.int32),
            starts=np.array([s.computed for s, _ in rows], np.int32),
            samples=np.array([s.computed + count == len(s.tokens) for s, count in rows]),
            token_ids=np.array([t for s, count in rows for t in s.tokens[s.computed :][:count]], np.int32),
        )
        self.note(record)
        tables = [self.tables[-1][handle] for handle in record.handles.tolist()]
        logits, _ = forward(self.model, self.memory, record, tables, self.fault, "paged")
        prints = row_stats(logits, "full", backend="torch").fingerprint
        assert prints is not None
        record.fingerprints, record.sampled = prints, greedy(logits)
        return self.commit(rows, record)

    def note(self, record: StepRecord) -> None:
        self.tables.append({h: np.array(s.blocks, np.int32) for h, s in self.live.items()})
        self.histories.append(
            {h: np.array(s.tokens[len(s.start.prompt_tokens) :], np.int32) for h, s in self.live.items()}
        )
        if self.records:
            before, now = self.tables[-2], self.tables[-1]
            record.ended = tuple(handle for handle in before if handle not in now)
            changes = [(h, i, int(b)) for h, t in now.items() for i, b in enumerate(t)]
            cuts = [(h, len(t), -1) for h, t in now.items()]
            record.block_changes = np.array(changes + cuts, np.int32).reshape(-1, 3)
        self.records.append(record)
        slots = np.concatenate(
            [
                np.array(
                    [self.tables[-1][h][p // BLOCK] * BLOCK + p % BLOCK for p in range(start, start + count)], np.int32
                )
                for h, start, count, _ in row_slices(record)
            ]
        )
        rows, offsets = self.memory.where(slots)
        old = {name: tensor[rows, :, offsets].clone() for name, tensor in self.memory.tensors.items()}
        self.undo.append(UndoEntry(record.step, slots, old))

    def allocate(self, sequence: Live, length: int) -> bool:
        needed = -(-length // BLOCK) - len(sequence.blocks)
        if needed > len(self.free):
            return False
        for _ in range(needed):
            sequence.blocks.append(self.free.pop(int(self.random.integers(len(self.free)))))
        return True

    def commit(self, rows: list[tuple[Live, int]], record: StepRecord) -> None:
        sampled = iter(record.sampled.tolist())
        for (sequence, count), samples in zip(rows, record.samples.tolist(), strict=True):
            sequence.computed += count
            if samples:
                sequence.tokens.append(next(sampled))
            if len(sequence.tokens) - len(sequence.start.prompt_tokens) >= sequence.limit:
                self.release(self.live.pop(sequence.start.handle))

    def capture(
        self,
        handles: Sequence[int],
        *,
        first: int = 0,
        last: int | None = None,
        undo_from: int = 0,
        findings: tuple[Finding, ...] = (),
    ) -> Capture:
        """As a recorder would after step `last`; memory of then is rebuilt from the undo entries."""
        last = self.records[-1].step if last is None else last
        window = RecordedWindow(self.records[first : last + 1], pack_tables(self.tables[first]), dict(self.starts))
        own = {int(b) for t in self.tables[first : last + 1] for h in handles for b in t.get(h, ())}
        blocks = np.array(sorted({b + shift for b in own for shift in (-1, 0, 1)}), np.int32)
        later = [entry for entry in self.undo if entry.step > last]
        image = self.memory.image(blocks).undo(later)
        histories = {}
        for handle in handles:
            seen = [r.step for r in window.records if handle in r.handles]
            if seen:
                histories[handle] = self.histories[seen[0]][handle]
        entries = [entry for entry in self.undo if undo_from <= entry.step <= last]
        return Capture(window, image, frozenset(histories), histories, entries, findings=findings)
