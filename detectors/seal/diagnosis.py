"""What broke a seal, told from hashes: which cells differ, and what they hold in place of what was sealed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.seal.cells import Cells, digest
from checkengine.detectors.seal.flips import Flip, find_flip
from checkengine.detectors.seal.seal import Seal

Mask = NDArray[np.bool_]


class Break(StrEnum):
    OTHER_TENANT = "another tenant's block"
    OTHER_BLOCK = "another block's content"
    STALE = "stale generation"
    SWAPPED_LAYERS = "swapped layers"
    BIT_FLIP = "bit flip"
    NOT_READY = "read before ready"
    SHORT = "short restore"
    LATE_WRITE = "late write"
    OTHER_FORMAT = "another dtype, length or scale"


@dataclass(frozen=True, slots=True)
class Expected:
    """What the reader asked for, from its own books and not from the seal that came with the bytes."""

    tokens: str
    length: int
    generation: int
    owner: str
    dtype: str
    earlier: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Digests of the same memory's content in earlier generations, where they are known."""


@dataclass(frozen=True, slots=True)
class Broken:
    kind: Break
    cells: int
    """That differ from the seal; 0 where the block is whole but not the one asked for."""
    layer: int = -1
    """The first that differs; -1 where none does."""
    token: int = -1
    head: int = -1
    flip: Flip | None = None


def diagnose(
    seal: Seal,
    arrived: Cells,
    expected: Expected,
    *,
    before: Cells | None = None,
    vector: Callable[[str, int, int, int], NDArray[np.generic]] | None = None,
) -> Broken | None:
    """None where what arrived is what was sealed and what was asked for.

    `before` are the cells of the destination as it was before the move; without them a read before ready, or a short
    restore, is told only by its form. `vector(tensor, layer, token, head)` gives the bytes of a cell, with which a
    single flipped bit is proven; without it no bit flip is claimed.
    """
    wrong = _other(seal, expected)
    if wrong is not None:
        return Broken(wrong, 0)
    if any(arrived.get(name) is None or arrived[name].shape != hashes.shape for name, hashes in seal.cells.items()):
        return Broken(Break.OTHER_FORMAT, 0)
    differs = {name: arrived[name] != hashes for name, hashes in seal.cells.items()}
    count = sum(int(mask.sum()) for mask in differs.values())
    if not count:
        return None
    kind, flip = _kind(seal, arrived, differs, expected, before, vector)
    name = next(name for name, mask in differs.items() if mask.any())
    layer, token, head = (int(each) for each in np.argwhere(differs[name])[0])
    return Broken(kind, count, layer, token, head + seal.first_head, flip)


def _other(seal: Seal, expected: Expected) -> Break | None:
    if seal.owner != expected.owner:
        return Break.OTHER_TENANT
    if seal.tokens != expected.tokens:
        return Break.OTHER_BLOCK
    if (seal.dtype, seal.length) != (expected.dtype, expected.length):
        return Break.OTHER_FORMAT
    return Break.STALE if seal.generation != expected.generation else None


def _kind(
    seal: Seal,
    arrived: Cells,
    differs: Mapping[str, Mask],
    expected: Expected,
    before: Cells | None,
    vector: Callable[[str, int, int, int], NDArray[np.generic]] | None,
) -> tuple[Break, Flip | None]:
    if digest(arrived, seal.first_head) in expected.earlier.values():
        return Break.STALE, None
    if _layers_swapped(seal.cells, arrived, differs):
        return Break.SWAPPED_LAYERS, None
    flip = _flip(seal.cells, differs, vector)
    if flip is not None:
        return Break.BIT_FLIP, flip
    if before is not None and not _holds(before, arrived, differs):
        return Break.LATE_WRITE, None
    if all(mask.all() for mask in differs.values()):
        return Break.NOT_READY, None
    return (Break.SHORT if _is_a_tail(differs) else Break.LATE_WRITE), None


def _layers_swapped(sealed: Cells, arrived: Cells, differs: Mapping[str, Mask]) -> bool:
    """Every layer that differs holds another layer's sealed cells, as whole."""
    found = False
    for name, mask in differs.items():
        layers = np.flatnonzero(mask.any((1, 2)))
        known = {hashes.tobytes() for hashes in sealed[name]}
        if any(arrived[name][layer].tobytes() not in known for layer in layers):
            return False
        found = found or len(layers) > 0
    return found


def _flip(
    sealed: Cells, differs: Mapping[str, Mask], vector: Callable[[str, int, int, int], NDArray[np.generic]] | None
) -> Flip | None:
    places = [(name, place) for name, mask in differs.items() for place in np.argwhere(mask).tolist()]
    if vector is None or len(places) != 1:
        return None
    name, (layer, token, head) = places[0]
    return find_flip(vector(name, layer, token, head), int(sealed[name][layer, token, head]))


def _holds(before: Cells, arrived: Cells, differs: Mapping[str, Mask]) -> bool:
    """Where the content is wrong it is what lay there before: it never came."""
    return all((arrived[name][mask] == before[name][mask]).all() for name, mask in differs.items())


def _is_a_tail(differs: Mapping[str, Mask]) -> bool:
    """From some token on all is wrong, in every tensor and layer alike."""
    wrong = np.stack([mask.any((0, 2)) for mask in differs.values()])
    whole = np.stack([mask.all((0, 2)) for mask in differs.values()])
    first = int(wrong.any(0).argmax())
    return bool(whole[:, first:].all()) and not bool(wrong[:, :first].any())
