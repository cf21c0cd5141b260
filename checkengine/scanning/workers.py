"""Chunks read by several processes, given back in their order.

An executor of the standard library gives up every chunk when one process dies, and does not say whose it was. Here each
process has one chunk and a pipe of its own: when it is killed (by the kernel, for memory), that chunk is read again
line by line, and only a line that kills its process a second time is given up, and told.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from checkengine.guards.errors import UserError
from checkengine.guards.settings import GuardsSettings
from checkengine.scanning.chunks import Fault, Reading, read_chunk
from checkengine.scanning.lines import Line
from checkengine.scanning.reader import RecordReader
from checkengine.scanning.token_streams import TokenGuards, load_vocabulary

AHEAD = 4
"""Chunks read ahead of the one that is due, for each process: what bounds the memory."""
MOST_STILLBORN = 3
"""Processes in a row that ended before they could read: then it is not the lines."""
PROCESSES = get_context("spawn")
"""Forking a process that has threads (numba's, tokenizers') can hang."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process needs to read lines."""

    names: tuple[str, ...]
    settings: GuardsSettings
    tokenizer: Path | None = None

    def reader(self) -> RecordReader:
        """Raises UserError for a tokenizer that cannot be loaded."""
        tokens = None
        if self.tokenizer is not None:
            tokens = TokenGuards(self.names, self.settings, *load_vocabulary(self.tokenizer))
        return RecordReader(self.names, self.settings, tokens)


@dataclass(slots=True)
class _Task:
    index: int
    lines: Sequence[Line]
    """Those that are still to be read."""
    careful: bool = False
    """A process died of it: a reading comes back for each line."""
    reading: Reading = field(default_factory=Reading)


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    task: _Task | None = None
    ready: bool = False
    """Its guards are made."""


class Workers:
    """Use as a context: the processes end with it, whatever happens."""

    def __init__(self, setup: Setup, count: int) -> None:
        self._setup = setup
        self._count = count
        self._workers: list[_Worker] = []
        self._again: deque[_Task] = deque()
        self._done: dict[int, Reading] = {}
        self._source: Iterator[Sequence[Line]] | None = iter(())
        self._given = self._due = 0
        """Chunks handed out, and given back."""
        self._stillborn = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()

    @property
    def process_ids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def read(self, chunks: Iterable[Sequence[Line]]) -> Iterator[Reading]:
        """One reading a chunk, in order. Raises UserError where processes cannot start, or die as they do."""
        self._source = iter(chunks)
        while True:
            while self._has_idle() and (task := self._next()) is not None:
                self._give(self._idle(), task)
            if self._due in self._done:
                yield self._done.pop(self._due)
                self._due += 1
            elif any(worker.task is not None for worker in self._workers):
                self._collect()
            elif not self._again:
                return

    def _next(self) -> _Task | None:
        if self._again:
            return self._again.popleft()
        if self._source is None or self._given >= self._due + AHEAD * self._count:
            return None
        if (lines := next(self._source, None)) is None:
            self._source = None
            return None
        self._given += 1
        return _Task(self._given - 1, lines)

    def _has_idle(self) -> bool:
        return len(self._workers) < self._count or any(worker.task is None for worker in self._workers)

    def _idle(self) -> _Worker:
        return next((worker for worker in self._workers if worker.task is None), None) or self._start()

    def _start(self) -> _Worker:
        ours, theirs = PROCESSES.Pipe()
        process = PROCESSES.Process(target=_work, args=(theirs, self._setup), daemon=True)
        with _without_interrupts():
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker, task: _Task) -> None:
        worker.task = task
        try:
            worker.pipe.send((task.lines, task.careful))
        except OSError:
            self._bury(worker)

    def _collect(self) -> None:
        """Wait for news from any busy process."""
        busy = {worker.pipe: worker for worker in self._workers if worker.task is not None}
        for pipe in wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                reading = worker.pipe.recv()
            except (EOFError, OSError):
                self._bury(worker)
            else:
                self._take(worker, reading)

    def _take(self, worker: _Worker, reading: Reading | UserError | None) -> None:
        """The first message says that the process is ready, or why no process can be."""
        if isinstance(reading, UserError):
            raise reading
        if reading is None:
            worker.ready, self._stillborn = True, 0
            return
        task = worker.task
        assert task is not None
        task.reading.add(reading)
        task.lines = task.lines[reading.lines :]
        if not task.lines:
            worker.task = None
            self._done[task.index] = task.reading

    def _bury(self, worker: _Worker) -> None:
        task = worker.task
        assert task is not None
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()
        if worker.ready:
            self._suspect(task, worker.process.exitcode)
        else:
            self._stillborn += 1
            if self._stillborn >= MOST_STILLBORN:
                raise UserError("the worker processes end as soon as they start; try --workers 1")
        if task.lines:
            self._again.append(task)
        else:
            self._done[task.index] = task.reading

    def _suspect(self, task: _Task, code: int | None) -> None:
        """Once may be chance; the line that was being read when it happened again is given up."""
        if not task.careful:
            task.careful = True
            return
        line, *rest = task.lines
        killed = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        fault = Fault(line.source, line.number, f"the process that read it ended twice ({killed}): out of memory?")
        task.reading.add(Reading([fault], lines=1, bytes=len(line.data)))
        task.lines = rest


class _without_interrupts:
    """Ctrl-C is for the parent; a child that starts meanwhile inherits that it is ignored."""

    def __enter__(self) -> None:
        try:
            self._before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        except ValueError:  # not the main thread: there are no handlers to change
            self._before = None

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _work(pipe: Connection, setup: Setup) -> None:
    readable = setup.tokenizer is not None
    try:
        try:
            reader = setup.reader()
        except UserError as error:
            pipe.send(error)
            return
        pipe.send(None)
        while True:
            lines, careful = pipe.recv()
            for part in [[line] for line in lines] if careful else [lines]:
                pipe.send(read_chunk(reader, part, tokenizer=readable))
    except (EOFError, OSError):
        return
