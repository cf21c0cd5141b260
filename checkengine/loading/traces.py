"""Recorded traffic as a workload: Mooncake's traces, Azure's, and files of either shape."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from checkengine.guards.errors import UserError, one_line
from checkengine.loading.planned import Planned, with_shared

MOONCAKE_BLOCK = 512
"""Tokens of a block that one of its hash_ids stands for."""
MOST_TOKENS = 1 << 24
FILES = {"mooncake": "mooncake_conversation.jsonl.gz", "azure": "azure_conv.csv.gz"}


def trace(profile: str, data: Path | None) -> list[Planned]:
    """A named trace out of the folder of public data. UserError where it is not there."""
    name = FILES[profile]
    if data is None:
        raise UserError(f"--profile {profile} needs --data DIR with {name} in it")
    if not (data / name).is_file():
        raise UserError(f"{data} holds no {name}, which --profile {profile} needs")
    return read_trace(data / name)


def read_trace(path: Path) -> list[Planned]:
    """In the order of arrival, from second 0. `.jsonl` as Mooncake's: {"timestamp" (ms), "input_length",
    "output_length", "hash_ids"?}; `.csv` as Azure's: TIMESTAMP, ContextTokens, GeneratedTokens. Both may be gzipped.

    Azure's tell nothing of prefixes: no request shares any.
    """
    suffixes = [each for each in path.suffixes if each != ".gz"]
    readers = {".jsonl": _mooncake, ".csv": _azure}
    if not suffixes or suffixes[-1] not in readers:
        raise UserError(f"{path} is no trace: give a .jsonl or .csv file, gzipped or not")
    try:
        with _opened(path) as file:
            found = sorted(readers[suffixes[-1]](file, path), key=lambda each: each.at)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {one_line(str(error))}") from None
    if not found:
        raise UserError(f"{path} holds no request")
    start = found[0].at
    return with_shared(_from(each, start) for each in found)


def _from(request: Planned, start: float) -> Planned:
    return Planned(request.at - start, request.input_tokens, request.output_tokens, request.chain, request.block_tokens)


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8")
    return path.open(encoding="utf-8")


def _mooncake(lines: Iterable[str], path: Path) -> Iterator[Planned]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _of_record(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise UserError(f"{path}, line {number} is no request: {one_line(str(error))}") from None


def _of_record(record: dict[str, Any]) -> Planned:
    chain = record.get("hash_ids") or ()
    if not all(type(each) is int for each in chain):
        raise ValueError("hash_ids are whole numbers")
    at = float(record["timestamp"]) / 1000
    return _planned(at, int(record["input_length"]), int(record["output_length"]), tuple(chain))


def _azure(lines: Iterable[str], path: Path) -> Iterator[Planned]:
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            # Seven digits of a second: one more than datetime reads.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield _planned(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]), ())
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}, line {number} is no request: {one_line(str(error))}") from None


def _planned(at: float, inputs: int, outputs: int, chain: tuple[int, ...]) -> Planned:
    if not (0 < inputs <= MOST_TOKENS and 0 <= outputs <= MOST_TOKENS and abs(at) < 1e12):
        raise ValueError(f"{inputs} input and {outputs} output tokens at {at} s are no request")
    return Planned(at, inputs, max(1, outputs), chain, MOONCAKE_BLOCK)
