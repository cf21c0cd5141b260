"""Lines of recorded traffic: files or standard input, plain, gzip or zstd, told apart by their first bytes."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from checkengine.guards.errors import UserError, one_line

STDIN = "-"
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
READ_BYTES = 1 << 16
COMPRESSED_BYTES = 1 << 11
"""Read at once of a compressed file: little, since it may unfold to 30,000 times as much."""
MOST_LINE_BYTES = 1 << 28
"""A longer line is told and passed over; it is never held whole."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end; `fault` says why there is none to read, and the data is empty then."""

    source: str
    number: int
    """From 1; empty lines count but are not given out."""
    data: bytes
    fault: str = ""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes) -> bytes: ...


class DamagedInput(Exception):
    """The rest of an input cannot be read."""


def check_inputs(sources: Iterable[str]) -> None:
    """Raises UserError where an input cannot be opened for reading: better known before hours of work."""
    names = list(sources)
    if names.count(STDIN) > 1:
        raise UserError("standard input (-) can be read once only; name it once")
    if STDIN in names and sys.stdin is None:
        raise UserError("standard input (-) is closed; name a file or pipe one in")
    for name in names:
        if name != STDIN:
            _check_file(name)


def _check_file(name: str) -> None:
    try:
        if not name:
            raise UserError("an input's name is empty; name a JSONL file, or - for standard input")
        if Path(name).is_dir():
            raise UserError(f"{name} is a folder; name the files in it")
        with open(name, "rb"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{name} cannot be read: {reason}; give a JSONL file, plain, gzip or zstd, or -") from error


def read_lines(source: str) -> Iterator[Line]:
    """The lines of a file, or of standard input for `-`. What is damaged is a line with a fault, and ends the file."""
    number = 0
    try:
        with _open(source) as file:
            for data in split_lines(unfolded(file)):
                number += 1
                if data is None:
                    yield Line(source, number, b"", f"longer than {MOST_LINE_BYTES:,} bytes")
                elif stripped := data.removeprefix(BYTE_ORDER_MARK).strip(b" \t\r\n"):
                    yield Line(source, number, stripped)
    except DamagedInput as error:
        yield Line(source, number + 1, b"", f"{error}; the rest of the file is lost")
    except OSError as error:
        reason = one_line(error.strerror or str(error))
        yield Line(source, number + 1, b"", f"cannot be read on: {reason}; the rest of the file is lost")


def _open(source: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if source == STDIN else open(source, "rb")


def unfolded(file: BinaryIO) -> Iterator[bytes]:
    """The file's bytes, unpacked where they are packed. Raises DamagedInput where a packed stream is torn."""
    first = _read(file, READ_BYTES)
    while first and len(first) < len(ZSTD_MAGIC) and (more := _read(file, READ_BYTES)):
        first += more
    if first.startswith(GZIP_MAGIC):
        yield from _unpacked("gzip", first, file)
    elif first.startswith(ZSTD_MAGIC):
        yield from _unpacked("zstd", first, file)
    else:
        while first:
            yield first
            first = _read(file, READ_BYTES)


def _read(file: BinaryIO, size: int) -> bytes:
    """What is there already, so that a pipe is read as it is written."""
    read = getattr(file, "read1", file.read)
    data: bytes = read(size)
    return data


def _unpacked(kind: str, first: bytes, file: BinaryIO) -> Iterator[bytes]:
    """Any number of members or frames, one after another; zeros that tapes and tar pad with end it."""
    unpack, begun = _decompressor(kind), False
    for packed in _small_pieces(first, file):
        while packed:
            if not begun and not packed.strip(b"\0"):
                break
            begun = True
            try:
                data = unpack.decompress(packed)
            except (zlib.error, zstandard.ZstdError) as error:
                raise DamagedInput(f"damaged {kind} ({one_line(str(error))})") from error
            if data:
                yield data
            packed = b""
            if unpack.eof:
                packed, unpack, begun = unpack.unused_data, _decompressor(kind), False
    if begun:
        raise DamagedInput(f"{kind} that ends too early")


def _small_pieces(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    while first:
        for start in range(0, len(first), COMPRESSED_BYTES):
            yield first[start : start + COMPRESSED_BYTES]
        first = _read(file, READ_BYTES)


def _decompressor(kind: str) -> _Decompressor:
    if kind == "gzip":
        return zlib.decompressobj(wbits=31)
    decompressor: _Decompressor = zstandard.ZstdDecompressor().decompressobj()
    return decompressor


def split_lines(pieces: Iterable[bytes], most: int = MOST_LINE_BYTES) -> Iterator[bytes | None]:
    """Lines without `\\n`; None for each that is longer than `most`, of which no more than that is held."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for end in whole:
            yield b"".join([*held, end]) if size + len(end) <= most else None
            held, size = [], 0
        size += len(rest)
        if size > most:
            held = []
        elif rest:
            held.append(rest)
    if size:
        yield b"".join(held) if size <= most else None
