"""A KV block's way from the process that wrote it to the one that read it, and which side of it broke the block.

Both sides keep what they saw, as hashes of the block's cells (detectors/seal): the writer when it sealed the block and
when it handed the bytes over, the reader when the transport said that they were there and when the block was read. The
first two that differ tell the side; no tolerance is needed, and where a record is missing nobody is accused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from checkengine.detectors.seal import Break, Broken, Cells, Flip, Seal

KIND = "kv.integrity"
_LABELS = ("tokens", "length", "dtype", "generation", "owner")


class Side(StrEnum):
    PREFILL = "prefill"
    """Who wrote the block: it changed after it was sealed, or was sealed as what it is not."""
    TRANSPORT = "transport"
    """Connector, network, host memory or disk: what was handed over is not what was delivered."""
    DECODE = "decode"
    """Who read the block: it was delivered whole and was another one when it was read."""
    UNTOLD = "not told"
    """A record is missing that would decide."""
    NONE = "none"
    """All records agree."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a block is said to be; words are keyed hashes."""

    tokens: str
    length: int
    dtype: str
    generation: int
    owner: str

    @staticmethod
    def of(seal: Seal) -> Label:
        return Label(*(getattr(seal, name) for name in _LABELS))


@dataclass(frozen=True, slots=True)
class PrefillRecord:
    """The writer's, kept apart from the bytes and from the seal that travels with them."""

    writer: str
    label: Label
    sealed: Cells
    sent: Cells | None = None
    """Of the bytes as they were handed to the transport; None where that was not recorded."""


@dataclass(frozen=True, slots=True)
class DecodeRecord:
    """The reader's."""

    reader: str
    wanted: Label
    seal: Label
    """As it came with the bytes."""
    writer: str
    """As the seal names it."""
    sealed: Cells
    """The seal's cells, as they came."""
    delivered: Cells | None
    """Where the transport put the block, when it said that it was there; None where that was not recorded."""
    read: Cells
    """When it was read, or was about to be."""
    before: Cells | None = None
    """The same memory before the block came."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One block's, that broke its seal."""

    block: str
    """Keyed hash of f(content, parent)."""
    broken: Broken
    prefill: PrefillRecord | None
    decode: DecodeRecord
    time: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Test:
    """Of two records in the order of the block's way."""

    name: str
    side: Side
    """Whose fault it is where they differ."""
    equal: bool | None
    """None: one of them is missing."""


@dataclass(frozen=True, slots=True)
class TransferVerdict:
    side: Side
    words: str
    tests: tuple[Test, ...] = ()


_WORDS: Mapping[Side, str] = MappingProxyType(
    {
        Side.PREFILL: "the prefill side broke it: its own records of the block differ, or name another block",
        Side.TRANSPORT: "the transport broke it: what was delivered is not what was sent",
        Side.DECODE: "the decode side broke it: it was delivered whole and was another when it was read",
        Side.UNTOLD: "nobody is accused: the record that would tell the sides apart is missing",
        Side.NONE: "nothing broke: all records of the block agree",
    }
)


def judge_transfer(transfer: Transfer) -> TransferVerdict:
    """The first two records that differ tell the side; a missing one before them leaves it untold."""
    tests = _tests(transfer)
    missing = False
    for test in tests:
        if test.equal is None:
            missing = True
        elif not test.equal:
            # What was delivered as it was sealed cannot have broken before.
            untold = missing and test.side is not Side.DECODE
            side = Side.UNTOLD if untold else test.side
            return TransferVerdict(side, _WORDS[side], tests)
    side = Side.UNTOLD if any(test.equal is None for test in tests) else Side.NONE
    return TransferVerdict(side, _WORDS[side], tests)


READ = "block as read = block as delivered"


def _tests(transfer: Transfer) -> tuple[Test, ...]:
    sent, came = transfer.prefill, transfer.decode
    return (
        Test(
            "bytes as handed over = block as sealed",
            Side.PREFILL,
            None if sent is None else _same(sent.sent, sent.sealed),
        ),
        Test("the writer's record = the block asked for", Side.PREFILL, None if sent is None else _fits(sent, came)),
        Test("seal as it came = the writer's record", Side.TRANSPORT, None if sent is None else _kept(sent, came)),
        Test("block as delivered = seal as it came", Side.TRANSPORT, _same(came.delivered, came.sealed)),
        Test(READ, Side.DECODE, _same(came.read, came.delivered)),
    )


def _fits(sent: PrefillRecord, came: DecodeRecord) -> bool:
    return sent.label == came.wanted


def _kept(sent: PrefillRecord, came: DecodeRecord) -> bool:
    return sent.label == came.seal and bool(_same(sent.sealed, came.sealed))


def _same(one: Cells | None, other: Cells | None) -> bool | None:
    if one is None or other is None:
        return None
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


# Evidence of a finding


def evidence_of(broken: Broken, block: int, side: Side | None = None) -> dict[str, float | int | bool]:
    """Numbers and names of classes only; the same wherever a seal broke."""
    evidence: dict[str, float | int | bool] = {
        "cells": broken.cells,
        "layer": broken.layer,
        "position": broken.token,
        "head": broken.head,
        "block": block,
        word(broken.kind): True,
    }
    if broken.flip is not None:
        evidence |= {"byte": broken.flip.byte, "bit": broken.flip.bit}
    return evidence | ({f"side_{word(side)}": True} if side is not None else {})


def word(words: str) -> str:
    return str(words).replace("'", "").replace(" ", "_").replace(",", "")


# As values for JSON


def broken_values(broken: Broken) -> dict[str, Any]:
    flip = None if broken.flip is None else {"byte": broken.flip.byte, "bit": broken.flip.bit}
    return {
        "kind": str(broken.kind), "cells": broken.cells, "layer": broken.layer, "token": broken.token,
        "head": broken.head, "flip": flip,
    }  # fmt: skip


def broken_of(values: Mapping[str, Any]) -> Broken:
    """ValueError, KeyError or TypeError for what `broken_values` does not write."""
    cells, layer, token, head = (int(values[name]) for name in ("cells", "layer", "token", "head"))
    flip = values.get("flip")
    bit = None if flip is None else Flip(int(flip["byte"]), int(flip["bit"]))
    return Broken(Break(values["kind"]), cells, layer, token, head, bit)


def label_values(label: Label) -> dict[str, Any]:
    return {name: getattr(label, name) for name in _LABELS}


def label_of(values: Mapping[str, Any]) -> Label:
    length, generation = int(values["length"]), int(values["generation"])
    return Label(str(values["tokens"]), length, str(values["dtype"]), generation, str(values["owner"]))


__all__ = [
    "KIND",
    "DecodeRecord",
    "Label",
    "PrefillRecord",
    "Side",
    "Test",
    "Transfer",
    "TransferVerdict",
    "broken_of",
    "broken_values",
    "evidence_of",
    "judge_transfer",
    "label_of",
    "label_values",
    "word",
]
