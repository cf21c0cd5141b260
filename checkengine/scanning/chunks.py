"""Some lines at a time: what is handed to a worker, and what comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from checkengine.detectors.language.codes import normal
from checkengine.guards.failure import place
from checkengine.scanning.finding_lines import Found
from checkengine.scanning.lines import Line
from checkengine.scanning.reader import Account, Failure, RecordReader
from checkengine.scanning.records import BadLine, Chat, Completion, Measurement, TokenStream, parse

CHUNK_LINES = 128
CHUNK_BYTES = 1 << 20
MOST_SHOWN = 24
"""Characters of a field that are shown to the person who scans."""


@dataclass(frozen=True, slots=True)
class Fault:
    source: str
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Remark:
    """What a person should know of a line that was read."""

    source: str
    number: int
    text: str
    reason: str
    """The same for lines that are told for the same reason."""


@dataclass(slots=True)
class Reading:
    """What a chunk of lines told; `events` in the order of the lines."""

    events: list[Found | Failure | Fault | Remark | Measurement] = field(default_factory=list)
    shapes: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    bytes: int = 0
    account: Account = field(default_factory=Account)

    def add(self, other: Reading) -> None:
        self.events += other.events
        self.shapes.update(other.shapes)
        self.lines += other.lines
        self.bytes += other.bytes
        self.account.add(other.account)


def chunked(lines: Iterable[Line], most: int = CHUNK_LINES) -> Iterator[list[Line]]:
    """At most `most` lines, and no more than a megabyte but for a line that is longer by itself."""
    chunk: list[Line] = []
    size = 0
    for line in lines:
        if chunk and size + len(line.data) > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += len(line.data)
        if len(chunk) >= most:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def read_chunk(reader: RecordReader, lines: Sequence[Line], *, tokenizer: bool) -> Reading:
    """`tokenizer`: token streams can be read. A line that cannot be read is a fault, never an exception."""
    reading = Reading()
    reader.account = reading.account
    for line in lines:
        reading.lines += 1
        reading.bytes += len(line.data)
        try:
            _read_line(reader, line, reading, tokenizer)
        except BadLine as bad:
            reading.events.append(Fault(line.source, line.number, str(bad)))
        except (Exception, MemoryError) as error:
            reason = f"could not be read: {type(error).__name__} {place(error)}"
            reading.events.append(Fault(line.source, line.number, reason))
    return reading


def _read_line(reader: RecordReader, line: Line, reading: Reading, tokenizer: bool) -> None:
    if line.fault:
        raise BadLine(line.fault)
    record = parse(line.data)
    if isinstance(record, TokenStream) and not tokenizer:
        raise BadLine("a token stream, which needs --tokenizer PATH")
    if isinstance(record, Measurement):
        reading.events.append(record)
    else:
        reading.events += _of_language(line, record)
        found, failures = reader.read(record)
        reading.events += [*found, *failures]
    reading.shapes[type(record).__name__] += 1


def _of_language(line: Line, record: Completion | Chat | TokenStream) -> list[Remark]:
    language = record.start.language if isinstance(record, Completion) else record.language
    if not language or normal(language):
        return []
    shown = ascii(language if len(language) <= MOST_SHOWN else language[:MOST_SHOWN] + "...")
    text = f"language {shown} is no ISO 639-1 code; the prompt is the expectation"
    return [Remark(line.source, line.number, text, "languages that are no ISO 639-1 code")]
