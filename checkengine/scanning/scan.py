"""Files of recorded traffic through the guards: what was found, and what could not be read."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from checkengine.guards.finding import Severity
from checkengine.scanning.chunks import Fault, Reading, Remark, chunked, read_chunk
from checkengine.scanning.finding_lines import Found
from checkengine.scanning.lines import STDIN, Line, read_lines
from checkengine.scanning.reader import Account, Failure
from checkengine.scanning.records import Measurement
from checkengine.scanning.series import SeriesReader
from checkengine.scanning.workers import Setup, Workers

MOST_TOLD = 20
"""Lines that are told of one by one for the same reason; the rest is counted."""


@dataclass(slots=True)
class Totals:
    """Of one scan, so far."""

    lines: int = 0
    bad: int = 0
    bytes: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    findings: Counter[tuple[str, str, Severity]] = field(default_factory=Counter)
    """By guard, kind and severity."""
    failures: Counter[str] = field(default_factory=Counter)
    """Records on which a guard raised, by guard."""
    account: Account = field(default_factory=Account)
    began: float = field(default_factory=time.monotonic)

    @property
    def records(self) -> int:
        return self.lines - self.bad

    @property
    def worst(self) -> Severity | None:
        return max((severity for _, _, severity in self.findings), default=None)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class Scan:
    """`write` takes a finding's line, `tell` a line for the person who scans, `progress` the totals now and then."""

    def __init__(
        self,
        setup: Setup,
        write: Callable[[str], None],
        tell: Callable[[str], None],
        progress: Callable[[Totals], None] = lambda totals: None,
    ) -> None:
        self.totals = Totals()
        self._setup = setup
        self._write = write
        self._tell = tell
        self._progress = progress
        self._series = SeriesReader(setup.names, setup.settings)
        self._loaded: set[str] = set()
        self._told: Counter[str] = Counter()
        """Lines that were told of, or would have been, by reason."""

    def run(self, sources: Sequence[str], workers: int = 1) -> Totals:
        """Read all; findings are written in the order of the lines."""
        chunks = self._chunks(sources, workers)
        for reading in self._alone(chunks) if workers == 1 else self._by_workers(chunks, workers):
            self._take(reading)
            self._progress(self.totals)
        self._note(self._series.end())
        for reason, count in self._told.items():
            if count > MOST_TOLD:
                self._tell(f"… and {count - MOST_TOLD:,} more: {reason}")
        return self.totals

    def _chunks(self, sources: Sequence[str], workers: int) -> Iterator[list[Line]]:
        for source in sources:
            # What comes through a pipe may come slowly: it is read as it comes.
            lines = read_lines(source)
            yield from chunked(lines, 1) if source == STDIN and workers == 1 else chunked(lines)

    def _alone(self, chunks: Iterable[Sequence[Line]]) -> Iterator[Reading]:
        reader = self._setup.reader()
        readable = self._setup.tokenizer is not None
        for chunk in chunks:
            yield read_chunk(reader, chunk, tokenizer=readable)

    def _by_workers(self, chunks: Iterable[Sequence[Line]], count: int) -> Iterator[Reading]:
        with Workers(self._setup, count) as workers:
            yield from workers.read(chunks)

    def _take(self, reading: Reading) -> None:
        totals = self.totals
        totals.lines += reading.lines
        totals.bytes += reading.bytes
        totals.shapes.update(reading.shapes)
        totals.account.add(reading.account)
        self._note(reading.events)

    def _note(self, events: Iterable[Found | Failure | Fault | Remark | Measurement]) -> None:
        totals = self.totals
        for event in events:
            if isinstance(event, Found):
                totals.findings[event.guard, event.kind, event.severity] += 1
                self._write(event.line())
            elif isinstance(event, Measurement):
                began = time.thread_time_ns()
                self._note(self._series.read(event))
                if self._series.reads:
                    totals.account.count({"drift": time.thread_time_ns() - began}, self._loaded)
            elif isinstance(event, Fault):
                totals.bad += 1
                self._tell_line(event, f"{event.reason}; skipped", event.reason)
            elif isinstance(event, Remark):
                self._tell_line(event, event.text, event.reason)
            else:
                self._note_failure(event)

    def _tell_line(self, event: Fault | Remark, text: str, reason: str) -> None:
        """What only differs by a number is the same reason."""
        reason = re.sub(r"\d[\d,]*", "N", reason)
        self._told[reason] += 1
        if self._told[reason] <= MOST_TOLD:
            self._tell(f"{event.source}:{event.number}: {text}")

    def _note_failure(self, failure: Failure) -> None:
        self.totals.failures[failure.guard] += 1
        if self.totals.failures[failure.guard] == 1:
            self._tell(f"guard {failure.guard} {failure.reason}; it is passed over for that record")
