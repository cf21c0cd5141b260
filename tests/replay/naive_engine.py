"""An engine without a model: real tables, real memory with random bits, everything kept in plain Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import torch

from checkengine.guards.finding import Finding, Severity
from checkengine.guards.step import SequenceStart
from checkengine.replay.capture import Capture
from checkengine.replay.involve import blocks_needed, involved
from checkengine.replay.memory import MemoryImage
from checkengine.replay.record import StepRecord
from checkengine.replay.recorded import pack_tables
from checkengine.replay.recorder import Recorder
from checkengine.replay.undo import UndoRing

BLOCK_SIZE = 4
POOL = 64
LAYERS = {"full": [0, 2], "window": [1]}


@dataclass
class Sequence:
    start: SequenceStart
    tokens: list[int]
    """Prompt and outputs; the last one's KV is not written yet."""
    table: list[int] = field(default_factory=list)
    cached: int = 0


@dataclass
class NaiveEngine:
    seed: int = 0
    undo_steps: int = 6
    dtype: torch.dtype = torch.float32
    checkpoint_every: int = 8

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.recorder = Recorder(64, 1 << 20, self.checkpoint_every)
        self.undo = UndoRing(self.undo_steps, 1 << 20)
        self.live: list[Sequence] = []
        self.gone: list[Sequence] = []
        self.free = list(range(POOL))
        self.records: list[StepRecord] = []
        self.memory = {
            f"{group}.{part}": self.bits((POOL, len(layers), BLOCK_SIZE, 1, 2))
            for group, layers in LAYERS.items()
            for part in ("key", "value")
        }
        self.images: dict[int, dict[str, torch.Tensor]] = {}
        """Memory before each step."""
        self.outputs: dict[int, dict[int, list[int]]] = {}
        self.next_handle = 0

    def bits(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Any bits: NaN payloads, infinities, denormals."""
        generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        size = torch.empty((), dtype=self.dtype).element_size()
        flat = torch.randint(0, 256, (int(np.prod(shape)) * size,), dtype=torch.uint8, generator=generator)
        return flat.view(self.dtype).reshape(shape)

    def join(self, name: str | None = None, prompt: list[int] | None = None) -> Sequence:
        handle, self.next_handle = self.next_handle, self.next_handle + 1
        prompt = prompt or [self.random.randrange(49152) for _ in range(self.random.randrange(1, 9))]
        sampling = {"temperature": 0.5, "seed": handle, "stop": ("schlusswort", "\ud83d"), "top_p": float("inf")}
        start = SequenceStart(handle, name or f"запрос {handle} 🚒", tuple(prompt), sampling, (2,), False, "de")
        sequence = Sequence(start, list(prompt))
        self.live.append(sequence)
        return sequence

    def share(self, of: Sequence, blocks: int) -> Sequence:
        """A sequence whose first blocks are another one's (a prefix hit)."""
        sequence = self.join(prompt=[*of.tokens[: blocks * BLOCK_SIZE], 7])
        sequence.table, sequence.cached = of.table[:blocks], blocks * BLOCK_SIZE
        return sequence

    def step(self, leave: list[Sequence] | None = None) -> StepRecord:
        number = len(self.records)
        changes, ended, begun = [], [], []
        for sequence in leave or []:
            self.live.remove(sequence)
            self.gone.append(sequence)
            ended.append(sequence.start.handle)
            others = {block for other in self.live for block in other.table}
            self.free += [block for block in sequence.table if block not in others]
        known = {start.handle for record in self.records for start in record.begun}
        rows, counts = list(self.live), []
        for sequence in rows:
            if sequence.start.handle not in known:
                begun.append(sequence.start)
                changes += [(sequence.start.handle, i, block) for i, block in enumerate(sequence.table)]
            counts.append(min(len(sequence.tokens) - sequence.cached, 5))
            while len(sequence.table) * BLOCK_SIZE < sequence.cached + counts[-1]:
                block = self.free.pop(0)
                changes.append((sequence.start.handle, len(sequence.table), block))
                sequence.table.append(block)
        samples = np.array([s.cached + c == len(s.tokens) for s, c in zip(rows, counts, strict=True)], bool)
        tables = {s.start.handle: np.array(s.table, np.int32) for s in self.live}
        record = StepRecord(
            step=number,
            time_ns=number * 1000,
            handles=np.array([s.start.handle for s in rows], np.int32),
            query_lengths=np.array(counts, np.int32),
            starts=np.array([s.cached for s in rows], np.int32),
            samples=samples,
            token_ids=np.array(
                [t for s, c in zip(rows, counts, strict=True) for t in s.tokens[s.cached : s.cached + c]], np.int32
            ),
            block_changes=np.array(changes, np.int32).reshape(-1, 3),
            tables=lambda: pack_tables(tables),
            begun=tuple(begun),
            ended=tuple(ended),
        )
        self.recorder.begin(record)
        self.outputs[number] = {s.start.handle: s.tokens[len(s.start.prompt_tokens) :] for s in rows}
        self.write(record, rows, counts)
        record.sampled = np.array([self.random.randrange(49152) for _ in range(int(samples.sum()))], np.int32)
        record.fingerprints = np.array([self.random.getrandbits(64) for _ in record.sampled], np.uint64)
        self.recorder.finish(number, record.fingerprints, record.sampled)
        sampled = iter(record.sampled.tolist())
        for sequence, count, samples_row in zip(rows, counts, samples.tolist(), strict=True):
            sequence.cached += count
            if samples_row:
                sequence.tokens.append(next(sampled))
        self.records.append(record)
        return record

    def write(self, record: StepRecord, rows: list[Sequence], counts: list[int]) -> None:
        self.images[record.step] = {name: tensor.clone() for name, tensor in self.memory.items()}
        slots = np.array(
            [
                s.table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
                for s, count in zip(rows, counts, strict=True)
                for p in range(s.cached, s.cached + count)
            ],
            np.int32,
        )
        blocks, offsets = torch.from_numpy(slots // BLOCK_SIZE).long(), torch.from_numpy(slots % BLOCK_SIZE).long()
        self.undo.save(record.step, slots, {name: tensor[blocks, :, offsets] for name, tensor in self.memory.items()})
        for name, tensor in self.memory.items():
            tensor[blocks, :, offsets] = self.bits((len(slots), *tensor[0].shape[:1], *tensor.shape[3:]))
            assert name

    def image(self, blocks: np.ndarray, memory: dict[str, torch.Tensor] | None = None) -> MemoryImage:
        chosen = torch.from_numpy(blocks).long()
        tensors = {name: tensor[chosen] for name, tensor in (memory or self.memory).items()}
        return MemoryImage(BLOCK_SIZE, blocks, tensors, LAYERS)

    def capture(self, sequence: Sequence, first_step: int | None = None) -> Capture:
        window = self.recorder.window(first_step)
        handles = involved(window, [sequence.start.handle], BLOCK_SIZE)
        first_rows: dict[int, int] = {}
        for record in window.records:
            for handle, start in zip(record.handles.tolist(), record.starts.tolist(), strict=True):
                first_rows.setdefault(handle, start)
        histories = {}
        for one in [*self.live, *self.gone]:
            handle = one.start.handle
            length = first_rows.get(handle, 0) - len(one.start.prompt_tokens)
            if handle in handles and length > 0:
                histories[handle] = np.array(one.tokens[len(one.start.prompt_tokens) :][:length], np.int32)
        return Capture(
            window=window,
            memory=self.image(blocks_needed(window, handles, POOL)),
            involved=handles,
            histories=histories,
            undo=self.undo.entries(window.first_step),
            environment={"engine": "naive", "threads": 2, "libraries": {"torch": "2"}, "scale": float("-inf")},
            findings=(
                Finding("logits.nonfinite", sequence.start.name, Severity.ERROR, window.last_step, 3, "nonfinite",
                        evidence={"nan": 4, "share": 0.1, "all": False}),
            ),
            incident="inc-1",
            time=1_790_000_000.25,
        )  # fmt: skip


def served(seed: int = 0, steps: int = 20, dtype: torch.dtype = torch.float32) -> tuple[NaiveEngine, Sequence]:
    """An engine after some steps with joins, leaves and a shared prefix, and one of its live sequences."""
    engine = NaiveEngine(seed, dtype=dtype)
    first = engine.join()
    for number in range(steps):
        if number % 4 == 1:
            engine.join()
        if number == 9:
            engine.share(first, min(2, first.cached // BLOCK_SIZE))
        leave = [engine.live[1]] if len(engine.live) > 4 else []
        engine.step(leave)
    return engine, first
