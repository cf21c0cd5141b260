"""The state of a series as bytes: what it keeps of its past, and what its bets have won."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from checkengine.detectors.drift.bets import FINE, Shape

_MOMENTS = ("total", "previous", "centre", "squares", "products", "phi", "score", "score_squares", "score_products")


def urn_of(shape: Shape) -> np.dtype[np.void]:
    """One for each stratum of a series. `words`: first the warm-up's values, two a word; then the edges, the lowest
    and the highest values, all in order. `sums`: each bet's tilt over all gaps; COARSE sums anew each time."""
    fields: list[tuple[str, DTypeLike, tuple[int, ...]]] = [
        ("words", np.uint64, (shape.words,)),
        ("sums", np.float64, (len(shape.bets()) if shape is FINE else 1,)),
        ("gaps", np.uint32, (shape.edges + 1,)),
        ("seen", np.uint32, ()),
    ]
    return np.dtype(fields)


def series_of(bets: int) -> np.dtype[np.void]:
    """`roberts`: Shiryaev-Roberts sums. `page`, `first`: CUSUM and where it began. `product` and `growth` (nats in
    units of 2^-32): the bets' gains since they were last collected. `score…`: of the products of neighbours'
    normal scores, for the check of dependence; the others are of the values, for whitening."""
    each: list[tuple[str, DTypeLike, tuple[int, ...]]] = [
        (name, np.float64, (bets,)) for name in ("roberts", "page", "product")
    ]
    each += [("growth", np.int64, (bets,)), ("first", np.uint32, (bets,)), ("seed", np.uint64, ())]
    each += [(name, np.float64, ()) for name in _MOMENTS]
    each += [(name, np.uint32, ()) for name in ("seen", "skipped", "alarms", "watched", "whiten", "dependent", "due")]
    return np.dtype(each)
