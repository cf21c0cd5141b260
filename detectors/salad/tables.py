"""The tables of this package, from `tables.npz`: counted, never written by hand, and no text is in them but words.

`python -m checkengine.benchmarks.salad_tables` makes the file; numbers are logarithms of probabilities.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.salad.token_classes import CLASSES, TokenClass

STEPS_PER_NAT = 4
SHARES = (0.02, 0.98)
"""Between which shares lie that are kept in parts of 256."""
FILE = "tables.npz"


@dataclass(frozen=True, slots=True)
class Tables:
    looks: NDArray[np.float64]
    """P of a class behind a form, shape (kinds, forms, CLASSES): few broad kinds of healthy text."""
    looks_salad: NDArray[np.float64]
    """P of a class, shape (CLASSES,), in what the demo model writes over corrupted memory."""
    healthy: NDArray[np.float64]
    """P of a class behind a form, shape (kinds, forms, CLASSES): kinds of healthy text."""
    salad: NDArray[np.float64]
    """P of a class, shape (CLASSES, kinds): salad of strong and of weak corruption."""
    healthy_new: NDArray[np.float64]
    """P that two pieces of these classes were not neighbours in the text that `seen` was counted over."""
    salad_new: NDArray[np.float64]
    """The same of salad, shape (CLASSES, kinds)."""
    text_healthy: NDArray[np.float64]
    """As `healthy`, of text cut into the vocabulary below."""
    text_salad: NDArray[np.float64]
    """As `salad`, of its text cut anew into the vocabulary below; the last kind is random ids."""
    text_healthy_new: NDArray[np.float64]
    text_salad_new: NDArray[np.float64]
    seen: NDArray[np.uint8]
    """Bits of the pairs of pieces that were neighbours in healthy text (`kernel.is_new`)."""
    words: tuple[str, ...]
    """Function words of fifteen languages."""
    word_pairs: NDArray[np.uint8]
    """Two bits a pair, at 2 · (b & 3) of [a, b >> 2]: 0 where word b follows word a in healthy text of any of the
    languages, 1 where it never did but would be rare anyway, 2 where healthy text avoids it, 3 where it is rarer than
    by chance."""
    merges: NDArray[np.int64]
    """Of the byte-pair vocabulary that text without token ids is read with: two ids each, in order of rank."""


@cache
def load_tables() -> Tables:
    content = resources.files(__package__).joinpath(FILE).read_bytes()
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return Tables(
            looks=_healthy(file["looks"]),
            looks_salad=_salad(file["looks_salad"])[:, 0],
            healthy=_healthy(file["healthy"]),
            salad=_salad(file["salad"]),
            healthy_new=file["healthy_new"].reshape(-1, len(TokenClass), CLASSES) / 256,
            salad_new=file["salad_new"].reshape(CLASSES, -1) / 256,
            text_healthy=_healthy(file["text_healthy"]),
            text_salad=_salad(file["text_salad"]),
            text_healthy_new=file["text_healthy_new"].reshape(-1, len(TokenClass), CLASSES) / 256,
            text_salad_new=file["text_salad_new"].reshape(CLASSES, -1) / 256,
            seen=file["seen"],
            words=tuple(file["words"].tobytes().decode().split()),
            word_pairs=file["word_pairs"],
            merges=file["merges"].astype(np.int64),
        )


def _healthy(stored: NDArray[np.uint8]) -> NDArray[np.float64]:
    known = probabilities(stored).reshape(-1, len(TokenClass), CLASSES)
    return known / known.sum(axis=2, keepdims=True)


def _salad(stored: NDArray[np.uint8]) -> NDArray[np.float64]:
    known = probabilities(stored).reshape(CLASSES, -1)
    return known / known.sum(axis=0)


def probabilities(levels: NDArray[np.uint8]) -> NDArray[np.float64]:
    known: NDArray[np.float64] = np.exp(-levels.astype(np.float64) / STEPS_PER_NAT)
    return known


def levels(known: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.clip(np.round(-STEPS_PER_NAT * np.log(known)), 0, 63).astype(np.uint8)


def parts(shares: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.round(256 * shares).astype(np.uint8)
