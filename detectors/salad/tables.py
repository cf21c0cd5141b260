"""The tables of this package, from `tables.npz`: counted, never written by hand, and no text is in them but words.

`python -m checkengine.benchmarks.salad_tables` makes the file; numbers are logarithms of probabilities.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources

import numpy as np
from numpy.typing import NDArray

STEPS_PER_NAT = 4
FILE = "tables.npz"
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Transitions:
    """Counted over tokens of one vocabulary."""

    healthy: Floats
    """P of a class behind a form, shape (kinds, forms, CLASSES): kinds of healthy text."""
    healthy_states: Floats
    """P of a state of `transitions.state_of`, given the two classes, shape (kinds, forms, CLASSES, STATES)."""
    salad: Floats
    """P of a class, shape (kinds, CLASSES): what a model writes over corrupted memory, at high temperature, and ids
    drawn at random."""
    salad_states: Floats
    """P of a state, given the class, shape (kinds, CLASSES, STATES)."""


@dataclass(frozen=True, slots=True)
class Tables:
    tokens: Transitions
    """Over the demo model's vocabulary; it serves any other."""
    text: Transitions
    """Over the vocabulary that text is read with."""
    counts: NDArray[np.uint8]
    """Of pairs of pieces that were neighbours in healthy text (`neighbours.level_of`)."""
    logs: NDArray[np.float32]
    """Of pieces (`neighbours.piece_logs`)."""
    words: tuple[str, ...]
    """Function words of fifteen languages."""
    word_pairs: NDArray[np.uint8]
    """Two bits a pair, at 2 · (b & 3) of [a, b >> 2]: 0 where word b follows word a in healthy text of any of the
    languages, 1 where it never did but would be rare anyway, 2 where healthy text avoids it, 3 where it is rarer than
    by chance."""
    counted_over: int
    """`fingerprint_of` the vocabulary of `tokens`."""
    merges: NDArray[np.int64]
    """Of the byte-pair vocabulary that text without token ids is read with: two ids each, in order of rank."""


@cache
def load_tables() -> Tables:
    content = resources.files(__package__).joinpath(FILE).read_bytes()
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return Tables(
            tokens=_transitions(file, ""),
            text=_transitions(file, "text_"),
            counts=file["counts"],
            logs=file["logs"].astype(np.float32) / LOG_STEPS,
            words=tuple(file["words"].tobytes().decode().split()),
            word_pairs=file["word_pairs"],
            counted_over=int(file["counted_over"][0]),
            merges=file["merges"].astype(np.int64),
        )


LOG_STEPS = 256
"""Of a nat, in `Tables.logs`."""


def fingerprint_of(pieces: Sequence[bytes]) -> int:
    """63 bits of a vocabulary's pieces, holes at its end left out."""
    digest = sha256(b"\0".join(pieces).rstrip(b"\0")).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _transitions(file: dict[str, NDArray[np.uint8]], prefix: str) -> Transitions:
    names = ("healthy", "healthy_states", "salad", "salad_states")
    return Transitions(*(probabilities(file[prefix + name]) for name in names))


def stored(known: Transitions, prefix: str) -> dict[str, NDArray[np.uint8]]:
    """As arrays of the file."""
    names = ("healthy", "healthy_states", "salad", "salad_states")
    return {prefix + name: levels(getattr(known, name)) for name in names}


def probabilities(levels: NDArray[np.uint8]) -> Floats:
    """Shape as stored, but for the kinds, which are stored last and come first; they sum to 1 over the last axis."""
    known: Floats = np.exp(-np.moveaxis(levels, -1, 0).astype(np.float64) / STEPS_PER_NAT)
    known /= known.sum(axis=-1, keepdims=True)
    return known


def levels(known: Floats) -> NDArray[np.uint8]:
    """Kinds last: kinds that tell nothing of their own about a pair are alike there, and pack well."""
    return np.clip(np.round(-STEPS_PER_NAT * np.log(np.moveaxis(known, 0, -1))), 0, 63).astype(np.uint8)
