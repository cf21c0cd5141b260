"""The format of spool files: one framed, checksummed JSON object a line.

A line is `CRC32 LENGTH JSON\\n`: eight hexadecimal digits, a decimal number of bytes, and ASCII JSON without a newline.
A line without its newline is a torn tail or still being written: a reader stops before it. A whole line whose length or
checksum is wrong is damaged: a reader skips it and counts it.

Files are `BOOT-INDEX.spool`; a process (one boot id) writes its files in the order of their index and holds an
exclusive flock on the newest.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUFFIX = ".spool"
MOST_LINE_BYTES = 1 << 20
CHUNK_BYTES = 4 << 20
MOST_NUMBER = 1 << 63
NAME = re.compile(r"(?P<boot>[0-9a-f]{16})-(?P<index>[0-9]{8})\.spool")


@dataclass(frozen=True, slots=True)
class SpoolRecord:
    """`boot` and `number` name it for ever; numbers rise by one within a boot, a gap is a dropped record."""

    boot: str
    number: int
    kind: str
    """finding, action, guard_disabled, brake, bundle, audit, audit_coverage."""
    time: float
    """Unix seconds."""
    replica: str = ""
    request: str = ""
    """Public name of the sequence that it concerns, if one."""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Progress:
    """How far a file is read; `damaged` counts lines that were skipped."""

    offset: int = 0
    damaged: int = 0


def file_name(boot: str, index: int) -> str:
    return f"{boot}-{index:08d}{SUFFIX}"


def parse_name(name: str) -> tuple[str, int] | None:
    """Boot id and index; None for a file that is no spool."""
    found = NAME.fullmatch(name)
    return (found["boot"], int(found["index"])) if found else None


def encode_line(record: SpoolRecord) -> bytes:
    """ValueError where the record does not fit a line or holds what JSON cannot carry."""
    value = {
        "boot": record.boot,
        "number": record.number,
        "kind": record.kind,
        "time": record.time,
        "replica": record.replica,
        "request": record.request,
        "data": {key: finite(item) for key, item in record.data.items()},
    }
    payload = json.dumps(value, separators=(",", ":"), allow_nan=False, default=refuse).encode("ascii")
    if len(payload) > MOST_LINE_BYTES - 32:
        raise ValueError(f"a spool record of {len(payload)} bytes")
    return b"%08x %d %s\n" % (zlib.crc32(payload), len(payload), payload)


def finite(value: object) -> object:
    """JSON has no NaN and no infinity: they travel as their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return value


def refuse(value: object) -> object:
    raise ValueError(f"a {type(value).__name__} in a spool record")


def decode_line(line: bytes) -> SpoolRecord | None:
    """The record of a line (without its newline), or None where it is damaged."""
    checksum, _, rest = line.partition(b" ")
    length, _, payload = rest.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(payload) or length != b"%d" % len(payload):
        return None
    try:
        return record_of(json.loads(payload))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def record_of(value: Any) -> SpoolRecord:
    """ValueError for a number or a time that no writer gives and no database takes."""
    number, time = int(value["number"]), float(value["time"])
    if not 0 <= number < MOST_NUMBER or not math.isfinite(time):
        raise ValueError("a number or a time out of range")
    return SpoolRecord(
        boot=str(value["boot"]),
        number=number,
        kind=str(value["kind"]),
        time=time,
        replica=str(value["replica"]),
        request=str(value["request"]),
        data=dict(value["data"]),
    )


def read_records(path: Path, progress: Progress, most: int = 1000) -> list[SpoolRecord]:
    """Up to `most` records from `progress.offset` on; `progress` is moved behind the last whole line that was read."""
    records: list[SpoolRecord] = []
    for line, end in lines(path, progress.offset):
        record = decode_line(line) if line is not None else None
        progress.offset = end
        if record is None:
            progress.damaged += 1
        else:
            records.append(record)
        if len(records) >= most:
            break
    return records


def open_ordinary(path: Path) -> int:
    """A descriptor to read from. OSError for a link, a pipe (which would be waited for), a folder or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no ordinary file", str(path))
    return descriptor


def lines(path: Path, offset: int) -> Iterator[tuple[bytes | None, int]]:
    """Whole lines without their newline, and where each ends; None for one that is longer than a line can be."""
    with os.fdopen(open_ordinary(path), "rb") as file:
        file.seek(offset)
        rest, begin, overlong = b"", offset, False
        while chunk := file.read(CHUNK_BYTES):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                begin += len(line) + 1
                yield (None if overlong or len(line) > MOST_LINE_BYTES else line), begin
                overlong = False
            if len(rest) > MOST_LINE_BYTES:
                # Keep the count, not the bytes: nothing in a spool may fill the reader's memory.
                begin, rest, overlong = begin + len(rest), b"", True
