"""A seal: hashes of a block's bytes, and what the block is. It travels beside the bytes, or through another way.

Written as one safetensors file: an array of hashes a tensor, all else in the header. No pickle; sizes are checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from checkengine.detectors.seal.cells import Cells, digest

FORMAT = 1
MAXIMUM_BYTES = 256 * 2**20
_DESCRIPTION = "checkengine.seal"


class SealError(ValueError):
    """What came as a seal is none, or seals do not fit each other."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Of one block, or of the heads of it that one rank holds."""

    cells: Cells
    tokens: str
    """Chained hash of the block's tokens and its parent's, hexadecimal: f(content, parent)."""
    length: int
    """Tokens that the block holds; slots beyond are nobody's and are not sealed."""
    dtype: str
    """Of the bytes as they were sealed. Whoever converts seals the converted bytes anew and names both."""
    generation: int
    """How often the block's memory had been handed out."""
    owner: str
    """Keyed hash (HMAC) of the tenant."""
    writer: str
    """Process and rank that sealed it."""
    first_head: int = 0
    converted_from: str = ""
    scales: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Hashes of quantisation scales by tensor, hexadecimal."""

    @property
    def digest(self) -> int:
        """One number for all cells at their places; digests of ranks add up mod 2^64."""
        return digest(self.cells, self.first_head)

    def heads(self, first: int, count: int) -> Seal:
        """Of the heads that another rank layout puts together, counted over the whole block."""
        begin = first - self.first_head
        held = min(hashes.shape[2] for hashes in self.cells.values())
        if begin < 0 or begin + count > held:
            raise SealError(f"heads {first} … {first + count - 1} are not in this seal, which holds {held} heads")
        cells = {name: hashes[:, :, begin : begin + count] for name, hashes in self.cells.items()}
        return replace(self, cells=MappingProxyType(cells), first_head=first)

    @staticmethod
    def joined(seals: Sequence[Seal]) -> Seal:
        """Of one block that several ranks sealed, each its heads. SealError where they are not of one block."""
        ordered = sorted(seals, key=lambda seal: seal.first_head)
        if not ordered:
            raise SealError("there is no seal to join")
        following = ordered[0].first_head
        for seal in ordered:
            if _described(seal) != _described(ordered[0]):
                raise SealError("the seals are of different blocks, lengths, dtypes or generations")
            if seal.first_head != following:
                raise SealError(f"head {following} is in no seal, or in two")
            following += next(iter(seal.cells.values())).shape[2]
        cells = {name: np.concatenate([seal.cells[name] for seal in ordered], 2) for name in ordered[0].cells}
        return replace(ordered[0], cells=MappingProxyType(cells))

    def to_bytes(self) -> bytes:
        head = {name: getattr(self, name) for name in _WORDS + _NUMBERS} | {"scales": dict(self.scales)}
        described = json.dumps({"format": FORMAT} | head, sort_keys=True)
        arrays = {name: np.ascontiguousarray(hashes) for name, hashes in self.cells.items()}
        written: bytes = safetensors.numpy.save(arrays, {_DESCRIPTION: described})
        return written

    @staticmethod
    def from_bytes(data: bytes) -> Seal:
        """SealError where the bytes are not what `to_bytes` writes."""
        if len(data) > MAXIMUM_BYTES:
            raise SealError(f"a seal of {len(data)} bytes; at most {MAXIMUM_BYTES} are read")
        try:
            cells = safetensors.numpy.load(data)
            head = json.loads(
                json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"][_DESCRIPTION]
            )
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise SealError(f"not a seal: {type(error).__name__}") from None
        _check(head, cells)
        values: dict[str, Any] = {name: head[name] for name in (*_WORDS, *_NUMBERS)}
        return Seal(cells=MappingProxyType(cells), scales=MappingProxyType(head["scales"]), **values)


_WORDS = ("tokens", "dtype", "owner", "writer", "converted_from")
_NUMBERS = ("length", "generation", "first_head")


def _described(seal: Seal) -> tuple[object, ...]:
    return (seal.tokens, seal.length, seal.dtype, seal.generation, seal.owner, tuple(seal.cells))


def _check(head: Any, cells: Mapping[str, Any]) -> None:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise SealError(f"not a seal of format {FORMAT}; a newer checkengine may have written it")
    for names, kind in ((_WORDS, str), (_NUMBERS, int)):
        for name in names:
            if type(head.get(name)) is not kind:
                raise SealError(f"a seal whose {name} is no {kind.__name__}")
    scales = head.get("scales")
    if not isinstance(scales, dict) or not all(isinstance(each, str) for each in scales.values()):
        raise SealError("a seal whose scales are no hashes")
    shapes = {hashes.shape[:2] for hashes in cells.values()}
    if not cells or any(hashes.dtype != np.uint64 or hashes.ndim != 3 for hashes in cells.values()):
        raise SealError("a seal whose hashes are not of shape (layers, tokens, heads)")
    if {tokens for _, tokens in shapes} != {head["length"]}:
        raise SealError("a seal whose hashes are not of as many tokens as it says")
