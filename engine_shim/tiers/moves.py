"""What carries a block from tier to tier; a drill's planted faults sit here, on either side or in the transfer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from checkengine.engine_shim.tiers.payload import Bits, Payload, cells_of
from checkengine.replay.transfer import Side

Planted = Literal[
    "bit flip", "swapped layers", "short restore", "read before ready", "late write", "stale generation", "other tenant"
]
PLANTED: tuple[Planted, ...] = (
    "bit flip",
    "swapped layers",
    "short restore",
    "read before ready",
    "late write",
    "stale generation",
    "other tenant",
)
BY_LABEL: tuple[Planted, ...] = ("stale generation", "other tenant")
"""Told by the seal that came, which a reader does not make: not a fault of the decode side."""
BY_PLACE: tuple[Planted, ...] = ("short restore", "read before ready")
"""What lay in the reader's memory before: a fault of who places the block there."""


def sides_of(planted: Planted) -> tuple[Side, ...]:
    """Where the fault can strike."""
    if planted in BY_LABEL:
        return (Side.TRANSPORT,)
    return (Side.DECODE,) if planted in BY_PLACE else (Side.PREFILL, Side.TRANSPORT, Side.DECODE)


class Move:
    """A block's way: it leaves its writer's hands, is carried, and is placed in its reader's memory."""

    def leave(self, payload: Payload) -> Payload:
        """The writer's last touch before it hands the bytes over."""
        return payload

    def carry(self, payload: Payload) -> Payload:
        """What came, whose seal is to be believed or not."""
        return payload

    def place(self, payload: Payload, destination: Mapping[str, Bits]) -> None:
        for name, tensor in payload.tensors.items():
            destination[name][...] = tensor


class FaultyMove(Move):
    """Strikes once, at the `strike`th block that comes to that side (0 is the first); seeded."""

    def __init__(self, planted: Planted, strike: int = 0, seed: int = 0, side: Side | None = None) -> None:
        """`side` is the last that the fault can strike on, where it is not given."""
        self.planted = planted
        self.side = side or sides_of(planted)[-1]
        self.struck = 0
        self._left = strike
        self._draw = np.random.default_rng(seed)

    def leave(self, payload: Payload) -> Payload:
        return self._damaged(payload) if self._strikes(Side.PREFILL) else payload

    def carry(self, payload: Payload) -> Payload:
        if not self._strikes(Side.TRANSPORT):
            return payload
        if self.planted == "stale generation":
            return replace(payload, sealed=replace(payload.seal, generation=payload.seal.generation - 1))
        return self._of_another(payload) if self.planted == "other tenant" else self._damaged(payload)

    def place(self, payload: Payload, destination: Mapping[str, Bits]) -> None:
        if not self._strikes(Side.DECODE):
            super().place(payload, destination)
        elif self.planted == "short restore":
            kept = int(self._draw.integers(payload.seal.length))
            for name, tensor in payload.tensors.items():
                destination[name][:, :kept] = tensor[:, :kept]
        elif self.planted != "read before ready":
            super().place(payload, destination)
            self._damage(destination)

    def _strikes(self, side: Side) -> bool:
        if side is not self.side or self.struck:
            return False
        self._left -= 1
        self.struck = int(self._left < 0)
        return bool(self.struck)

    def _damaged(self, payload: Payload) -> Payload:
        tensors = {name: np.array(tensor) for name, tensor in payload.tensors.items()}
        self._damage(tensors)
        return replace(payload, tensors=tensors)

    def _damage(self, destination: Mapping[str, Bits]) -> None:
        for tensor in destination.values():
            layer, token, head, column = (int(self._draw.integers(size)) for size in tensor.shape)
            if self.planted == "bit flip":
                width = tensor.dtype.itemsize * 8
                tensor[layer, token, head, column] ^= tensor.dtype.type(1 << int(self._draw.integers(width)))
                return
            if self.planted == "swapped layers":
                other = (layer + 1) % len(tensor)
                tensor[[layer, other]] = tensor[[other, layer]]
            else:
                tensor[layer, : token + 1] = tensor[layer, : token + 1] + tensor.dtype.type(1)

    def _of_another(self, payload: Payload) -> Payload:
        """Whole and sealed, but another tenant's: what only the owner in the seal can tell."""
        tensors = {name: np.roll(tensor, 1, 1) for name, tensor in payload.tensors.items()}
        seal = replace(payload.seal, cells=MappingProxyType(cells_of(tensors)), owner="another tenant")
        return Payload(tensors, seal)
