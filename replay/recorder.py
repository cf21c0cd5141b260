"""The ring of step records: always on, fixed in memory, never in the engine's way."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.step import SequenceStart
from checkengine.replay import frame
from checkengine.replay.record import BlockTables, Ints, StepRecord
from checkengine.replay.recorded import RecordedWindow, apply_changes, pack_tables, unpack_tables
from checkengine.replay.ring import FrameRing


class Recorder:
    """Keeps the last `steps` step records in at most `bytes` of memory, allocated once.

    One thread (the engine's) calls `begin` and `finish`; any thread may call `window`. Neither `begin` nor `finish`
    raises: a step that cannot be recorded is counted in `dropped`, and the usable window starts after it. A step
    that is overwritten because it grew old is no drop.

    A quarter of the bytes is set aside for the prompts of sequences that ended while records still name them.
    """

    def __init__(self, steps: int = 4096, bytes: int = 64 << 20, checkpoint_every: int = 256) -> None:
        self.dropped = 0
        self._prompts_limit = bytes // 4
        self._ring = FrameRing(steps, (bytes - self._prompts_limit) // 4)
        self._checkpoint_steps = max(1, min(checkpoint_every, steps // 4))
        self._checkpoint_words = self._ring.capacity // 4
        self._steps_since_checkpoint = -1
        self._words_since_checkpoint = 0
        self._gap = 0
        """First frame after the last step that could not be recorded."""
        self._next_step = 0
        self._kernels: list[str] = []
        self._starts: dict[int, SequenceStart] = {}
        self._ended: dict[int, tuple[SequenceStart, array[int]]] = {}
        self._leaving: deque[tuple[int, int]] = deque()
        self._prompt_bytes = 0
        self._lock = threading.Lock()

    def begin(self, record: StepRecord) -> None:
        """Record what decides the step, before it runs. A step number that does not follow the one before tells that
        records are missing: the usable window starts after the gap."""
        with self._lock:
            try:
                if record.step != self._next_step:
                    self._break()
                self._next_step = record.step + 1
                self._note_sequences(record)
                self._write(record)
            except Exception:
                self.dropped += 1
                self._break()

    def skip(self, record: StepRecord) -> None:
        """The step runs while recording is switched off: only sequences that come and go are noted."""
        with self._lock, contextlib.suppress(Exception):
            self._note_sequences(record)

    def finish(self, step: int, fingerprints: NDArray[np.uint64] | None, sampled: Ints) -> None:
        """Record the outcome, aligned with the rows that sample. Fingerprints may be None or empty (level screen)."""
        with self._lock:
            number = self._ring.find(step)
            if number is None:
                return
            try:
                words, doubles = self._ring.frame(number), self._ring.doubles(number)
                marks = frame.write_outcome(words, doubles, fingerprints, sampled)
                self._ring.marks[number % self._ring.steps] |= marks
            except Exception:
                self.dropped += 1

    def live(self) -> dict[int, SequenceStart]:
        """By handle: the sequences that have begun and not ended."""
        with self._lock:
            return dict(self._starts)

    def last_step(self) -> int | None:
        """The newest step that began; None where none did, or where it could not be recorded."""
        with self._lock:
            head = self._ring.head
            return self._ring.step_numbers[(head - 1) % self._ring.steps] if head > self._gap else None

    def bytes_used(self) -> int:
        """Memory held by records and by prompts of ended sequences, now; the ring counts whole."""
        with self._lock:
            return self._ring.bytes + self._prompt_bytes

    def window(self, first_step: int | None = None) -> RecordedWindow:
        """Decoded records from `first_step` on (None: all that the ring holds), at the earliest from the oldest
        checkpoint: a step before it has no block tables. Writing goes on meanwhile."""
        with self._lock:
            snapshot = self._ring.snapshot(self._gap)
            starts = Starts(dict(self._starts), dict(self._ended))
            kernels = list(self._kernels)
        indices = snapshot.from_checkpoint(first_step)
        frames = snapshot.copy(indices)
        with self._lock:
            indices = snapshot.surviving(indices, self._ring.tail)
            dropped = self.dropped
        read = [frame.Frame(frames[index], int(snapshot.marks[index])) for index in indices]
        return assembled(read, starts, kernels, dropped, first_step)

    def _break(self) -> None:
        """What is recorded so far does not lead to what comes next."""
        self._gap = self._ring.head
        self._steps_since_checkpoint = -1

    def _note_sequences(self, record: StepRecord) -> None:
        for start in record.begun:
            self._starts[start.handle] = start
        for handle in record.ended:
            start_or_none = self._starts.pop(handle, None)
            if start_or_none is not None:
                self._retire(start_or_none)

    def _retire(self, start: SequenceStart) -> None:
        """Its prompt goes into 4 bytes a token: the engine lets go of the tuple, records may still name it."""
        prompt = array("i", start.prompt_tokens)
        self._ended[start.handle] = (replace(start, prompt_tokens=()), prompt)
        self._leaving.append((self._ring.head, start.handle))
        self._prompt_bytes += 4 * len(prompt)
        while self._prompt_bytes > self._prompts_limit and self._ring.evict():
            self._forget_evicted()

    def _forget_evicted(self) -> None:
        while self._leaving and self._leaving[0][0] <= self._ring.tail:
            _, prompt = self._ended.pop(self._leaving.popleft()[1])
            self._prompt_bytes -= 4 * len(prompt)

    def _write(self, record: StepRecord) -> None:
        tables = self._due_tables(record)
        counts = frame.measure(record, tables)
        size = frame.count_words(counts)
        words = self._ring.claim(size)
        if self._leaving:
            self._forget_evicted()
        frame.write(words, record, tables, counts, self._kernel(record.kernel))
        self._ring.publish(record.step, frame.CHECKPOINT if tables is not None else 0)
        self._count(size, tables is not None)

    def _due_tables(self, record: StepRecord) -> BlockTables | None:
        due = (
            not 0 <= self._steps_since_checkpoint < self._checkpoint_steps - 1
            or self._words_since_checkpoint > self._checkpoint_words
        )
        return record.tables() if due and record.tables is not None else None

    def _count(self, words: int, checkpoint: bool) -> None:
        if checkpoint:
            self._steps_since_checkpoint = self._words_since_checkpoint = 0
        elif self._steps_since_checkpoint >= 0:
            self._steps_since_checkpoint += 1
            self._words_since_checkpoint += words

    def _kernel(self, name: str) -> int:
        if name not in self._kernels:
            if len(self._kernels) == frame.MOST_KERNELS:
                raise ValueError("too many kernel names")
            self._kernels.append(name)
        return self._kernels.index(name)


class Starts(Mapping[int, SequenceStart]):
    """Of live sequences and of ended ones, whose prompts are unpacked where they are asked for."""

    def __init__(self, live: dict[int, SequenceStart], ended: dict[int, tuple[SequenceStart, array[int]]]) -> None:
        self._live = live
        self._ended = ended

    def __getitem__(self, handle: int) -> SequenceStart:
        if handle not in self._live:
            start, prompt = self._ended[handle]
            self._live[handle] = replace(start, prompt_tokens=tuple(prompt))
        return self._live[handle]

    def __iter__(self) -> Iterator[int]:
        return iter(self._live.keys() | self._ended.keys())

    def __len__(self) -> int:
        return len(self._live.keys() | self._ended.keys())


def assembled(
    frames: Sequence[frame.Frame],
    starts: Mapping[int, SequenceStart],
    kernels: Sequence[str],
    dropped: int,
    first_step: int | None,
) -> RecordedWindow:
    """Records from a checkpoint on, without those before `first_step`; only the sequences that they name are kept."""
    window = RecordedWindow(dropped=dropped)
    begin = 0
    while begin < len(frames) and first_step is not None and frames[begin].step < first_step:
        begin += 1
    tables = unpack_tables(frames[0].tables()) if frames else {}
    apply_changes(tables, ((one.ended(), one.block_changes()) for one in frames[1 : begin + 1]))
    window.records = [one.record(starts, kernels) for one in frames[begin:]]
    window.base = pack_tables(tables if window.records else {})
    named = {handle for record in window.records for handle in record.handles.tolist()} | tables.keys()
    window.starts = {h: starts[h] if h in starts else unknown_start(h) for h in named} if window.records else {}
    return window


def unknown_start(handle: int) -> SequenceStart:
    """Of a sequence whose begin was never told. Its history counts as unknown, so no replay is based on it."""
    return SequenceStart(handle, f"unknown-{handle}")
