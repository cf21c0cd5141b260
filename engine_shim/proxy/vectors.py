"""Vectors of /v1/embeddings that carry nothing: not finite, of no length, or alike in all components.

Limits: of vectors written as numbers, the first 64 Ki numbers of an answer are parsed; of those behind them a vector is
found where a number is missing or all are 0. Vectors in base64 are read whole.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.embeddings import read_embeddings
from checkengine.engine_shim.proxy.dialects import NotReadError
from checkengine.guards.embeddings import evidence, kind_of
from checkengine.guards.finding import Severity
from checkengine.guards.text import TextFinding

NAME = "embeddings"
MOST_NUMBERS = 1 << 16
"""About 2 ms of the event loop's time."""
NO_JSON = (b"NaN", b"Infinity")
_OF_ZERO = b"0.,-+eE \t\r\n[]"
"""All that a vector of nothing but zeros is written with."""
Vector = NDArray[np.floating[Any]]


class _Item(msgspec.Struct):
    embedding: msgspec.Raw = msgspec.Raw(b"null")


class _Vectors(msgspec.Struct):
    data: list[_Item] | None = None
    usage: Any = None


class Vectors:
    """Of one answer. Raises NotReadError where it is none."""

    def __init__(self, body: bytes) -> None:
        self.usage: dict[str, object] = {}
        try:
            found = msgspec.json.decode(body, type=_Vectors)
        except (msgspec.DecodeError, RecursionError, ValueError):
            # Some servers write what is no number as Python does, which is no JSON.
            if not any(name in body for name in NO_JSON):
                raise NotReadError from None
            self._written = [b"[null]"]
            return
        self.usage = found.usage if isinstance(found.usage, dict) else {}
        self._written = [bytes(item.embedding) for item in found.data or ()]

    def __len__(self) -> int:
        return len(self._written)

    def findings(self, identity: str) -> list[TextFinding]:
        """A kind is told once, of the first such vector."""
        left, found = MOST_NUMBERS, dict[str, TextFinding]()
        for row, written in enumerate(self._written):
            vector = _vector(written, left)
            left -= len(vector) if written[:1] == b"[" else 0
            for kind, numbers in _faults(vector):
                at = {"token": 0}
                told = TextFinding(kind, identity, Severity.ERROR, NAME, at, evidence={**numbers, "vector": row})
                found.setdefault(kind, told)
        return list(found.values())


def _vector(written: bytes, most: int) -> Vector:
    """Empty where it is none, or where it need not be looked at."""
    if written[:1] == b'"':
        return _of_base64(written)
    if written[:1] != b"[" or (empty := not written.strip(b"[] \t\r\n")):
        return np.empty(0)
    if most > 0 or b"null" in written:
        return _of_numbers(written)
    return np.zeros(2) if not empty and not written.translate(None, _OF_ZERO) else np.empty(0)


def _of_numbers(written: bytes) -> Vector:
    try:
        numbers = msgspec.json.decode(written, type=list[float | None])
    except (msgspec.DecodeError, ValueError):
        return np.empty(0)
    return np.array([math.nan if number is None else number for number in numbers])


def _of_base64(written: bytes) -> Vector:
    """Single precision, as OpenAI's clients read it."""
    try:
        data = base64.b64decode(msgspec.json.decode(written), validate=True)
    except (binascii.Error, ValueError):
        return np.empty(0)
    return np.frombuffer(data, "<f4") if data and len(data) % 4 == 0 else np.empty(0)


def _faults(vector: Vector) -> Iterator[tuple[str, dict[str, float]]]:
    if not len(vector):
        return
    reading = read_embeddings(vector[np.newaxis])
    if reading.nonfinite[0] or reading.zero[0] or reading.constant[0]:
        yield kind_of(reading, 0), evidence(reading, 0, len(vector))
