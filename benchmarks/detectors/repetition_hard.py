"""Repetition in what is healthy on this machine: how often it stops and warns, on short replies and on long ones."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.benchmarks.detectors.corpus import CHUNK_TOKENS, Corpus
from checkengine.benchmarks.detectors.repetition_reader import Reader
from checkengine.benchmarks.figure import figure
from checkengine.detectors.compiled import compiled

Tokens = NDArray[np.int32]
LONG_TOKENS, LEAST_LONG = 2048, 1024
"""Tokens of a long reply, and those that the rest of a file needs to make one."""


def hard_figures(corpus: Corpus, units: Tokens, wanted: int) -> list[dict[str, Any]]:
    """Stops, and warnings for the record, apart for chunks that hold four exact copies over 128 tokens or more."""
    reader = Reader(units)
    short = counts(reader, (corpus.token_ids(index) for index in range(len(corpus))))
    long = counts(reader, long_replies(corpus))
    return [
        figure("repetition.hard.chunks", int(short[:, 0].sum()), "chunks", wanted, at_least=True),
        stops("repetition.hard.stops", short, CHUNK_TOKENS),
        figure("repetition.hard.warnings", per_million(short, 0, 1), "per million, not periodic", 20_000),
        periodic_stops("repetition.periodic.stops", short),
        figure("repetition.periodic.chunks", per_million(short, 1, 0), "per million", 50_000),
        figure("repetition.long.chunks", int(long[:, 0].sum()), "chunks", wanted // 10, at_least=True),
        stops("repetition.long.stops", long, LONG_TOKENS),
        periodic_stops("repetition.long.periodic.stops", long),
    ]


def stops(name: str, counted: NDArray[np.int64], tokens: int) -> dict[str, Any]:
    chunks, stopped = int(counted[:, 0].sum()), int(counted[0, 2])
    unit = (
        f"per million ({stopped} of {chunks} of {tokens} tokens; 95 %: at most {bound(stopped, chunks)}), not periodic"
    )
    return figure(name, per_million(counted, 0, 2), unit, 10)


def bound(seen: int, chunks: int) -> str:
    """Per million, by the normal approximation of the Poisson bound; three where none was seen."""
    return f"{1e6 * (3.0 if not seen else seen + 1.645 * seen**0.5 + 1.35) / max(1, chunks):.0f}"


def periodic_stops(name: str, counted: NDArray[np.int64]) -> dict[str, Any]:
    periodic, _, stopped = (int(count) for count in counted[1])
    return figure(name, stopped / max(1, periodic), f"of {periodic} periodic chunks told", 0.5)


def per_million(counted: NDArray[np.int64], row: int, column: int) -> float:
    return float(1e6 * counted[row, column] / max(1, counted[:, 0].sum()))


def counts(reader: Reader, replies: Iterable[Tokens]) -> NDArray[np.int64]:
    """Replies, warned, stopped (columns), of those that are not periodic and of those that are (rows)."""
    found = np.zeros((2, 3), np.int64)
    for tokens in replies:
        told = reader.read(tokens)
        periodic = bool(told) and is_periodic(tokens)
        found[int(periodic)] += (1, bool(told), any(reading.stop for reading in told))
    return found


def long_replies(corpus: Corpus) -> Iterable[Tokens]:
    """The same files cut into long replies: chunks of one file follow each other."""
    edges = [0, *(np.flatnonzero(np.diff(corpus.source_of)) + 1).tolist(), len(corpus)]
    for first, end in pairwise(edges):
        begin, finish = int(corpus.first_token[first]), int(corpus.first_token[end])
        for at in range(begin, finish, LONG_TOKENS):
            if finish - at >= LEAST_LONG:
                yield corpus.tokens[at : min(at + LONG_TOKENS, finish)]


@compiled
def is_periodic(tokens: Tokens) -> bool:
    """At least 4 exact copies over at least 128 tokens, at any period."""
    for period in range(1, len(tokens) // 4 + 1):
        run = 0
        for at in range(period, len(tokens)):
            run = run + 1 if tokens[at] == tokens[at - period] else 0
            if run + period >= max(128, 4 * period):
                return True
    return False
