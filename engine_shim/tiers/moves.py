"""What carries a block from tier to tier; a drill's planted faults sit here, in the transfer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from checkengine.engine_shim.tiers.payload import Bits, Payload, cells_of

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


class Move:
    """Copies a payload's bytes into memory."""

    def arrive(self, payload: Payload, destination: Mapping[str, Bits]) -> Payload:
        """Write into the destination; returns the payload as it came, whose seal is to be believed or not."""
        for name, tensor in payload.tensors.items():
            destination[name][...] = tensor
        return payload


class FaultyMove(Move):
    """Strikes once, at the `strike`th block that moves (0 is the first); seeded."""

    def __init__(self, planted: Planted, strike: int = 0, seed: int = 0) -> None:
        self.planted = planted
        self.struck = 0
        self._left = strike
        self._draw = np.random.default_rng(seed)

    def arrive(self, payload: Payload, destination: Mapping[str, Bits]) -> Payload:
        if self._left:
            self._left -= 1
            return super().arrive(payload, destination)
        if self.struck:
            return super().arrive(payload, destination)
        self.struck += 1
        return self._strike(payload, destination)

    def _strike(self, payload: Payload, destination: Mapping[str, Bits]) -> Payload:
        if self.planted == "read before ready":
            return payload
        if self.planted == "short restore":
            return self._short(payload, destination)
        payload = super().arrive(payload, destination)
        if self.planted == "stale generation":
            return replace(payload, seal=replace(payload.seal, generation=payload.seal.generation - 1))
        if self.planted == "other tenant":
            return self._of_another(payload, destination)
        self._damage(destination)
        return payload

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

    def _short(self, payload: Payload, destination: Mapping[str, Bits]) -> Payload:
        kept = int(self._draw.integers(payload.seal.length))
        for name, tensor in payload.tensors.items():
            destination[name][:, :kept] = tensor[:, :kept]
        return payload

    def _of_another(self, payload: Payload, destination: Mapping[str, Bits]) -> Payload:
        """Whole and sealed, but another tenant's: what only the owner in the seal can tell."""
        for tensor in destination.values():
            tensor[...] = np.roll(tensor, 1, 1)
        seal = replace(payload.seal, cells=MappingProxyType(cells_of(destination)), owner="another tenant")
        return replace(payload, seal=seal)
