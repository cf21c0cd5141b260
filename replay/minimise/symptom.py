"""What must stay the same while a reproducer shrinks: the class of the fault and where the guilty slot lies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.op_call import OpCall
from checkengine.replay.record import Ints


class Shown(StrEnum):
    """By which exact test a fault shows."""

    FINITE_FILL = "finite fill"
    """Other bits when memory that the call does not own holds another finite number."""
    NAN_FILL = "NaN fill"
    """Other bits only when that memory holds NaN."""
    NOT_FINITE = "not finite"
    """NaN or infinity from finite inputs, and none under the reference kernel."""
    WRONG_READS = "wrong reads"
    """The slots read, told by coded values, are not those that may be (own ones left out or read twice)."""
    BEYOND_BOUND = "beyond the rounding bound"
    """Further from float64 on the same inputs than rounding can bring it."""
    JUDGED = "the judge's verdict"
    """Only a whole step shows it: the judge convicts it of the same class again."""


class Place(StrEnum):
    PAST_END = "past the end"
    BEFORE_WINDOW = "before the window"
    OTHER_BLOCK = "in a block of nobody or of another sequence"
    ANY = "in memory that the call does not own"
    """No single slot shows it."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Of the guilty slot to the sequence that reads it."""

    place: Place
    distance: int = 0
    """Slots past the last owned one in memory, or positions before the window's first."""

    @property
    def words(self) -> str:
        if self.place in (Place.OTHER_BLOCK, Place.ANY):
            return str(self.place)
        return f"{ {1: 'one', 2: 'two', 3: 'three'}.get(self.distance, f'{self.distance:,}') } {self.place}"

    @classmethod
    def of(cls, call: OpCall, slot: int) -> Relation:
        """ValueError where the call owns the slot."""
        owned, size = call.owned, call.block_size
        if slot in owned:
            raise ValueError(f"the call owns slot {slot}")
        held = np.flatnonzero(call.table == slot // size)
        position = int(held[0]) * size + slot % size if len(held) else None
        if position is not None and position < call.length:
            return cls(Place.BEFORE_WINDOW, call.length - len(owned) - position)
        distance = slot - int(owned[-1])
        return cls(Place.PAST_END, distance) if 0 < distance <= size else cls(Place.OTHER_BLOCK)

    def slots_in(self, call: OpCall, known: int | None) -> Ints:
        """Where the guilty slot must lie in a call; `known` is where it was last. Empty where it cannot lie there."""
        if self.place is Place.ANY:
            return call.unowned
        slot = known
        if self.place is Place.PAST_END:
            slot = int(call.owned[-1]) + self.distance
        elif self.place is Place.BEFORE_WINDOW:
            position = call.length - len(call.owned) - self.distance
            page, offset = divmod(max(position, 0), call.block_size)
            slot = None if position < 0 else int(call.table[page]) * call.block_size + offset
        return np.intersect1d(call.hidden, np.array([] if slot is None else [slot])).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Symptom:
    kind: VerdictKind
    shown: Shown
    relation: Relation | None = None
    """Of a read of memory that is not the call's."""
    fault_class: FaultClass | None = None
    """Where the test tells classes apart."""

    @property
    def words(self) -> str:
        if self.relation is not None:
            return f"{self.kind}: reads {self.relation.words} ({self.shown})"
        if self.shown is Shown.NOT_FINITE:
            return f"{self.kind}: NaN or infinity from finite inputs"
        return f"{self.kind}: {self.fault_class or 'wrong output'} ({self.shown})"

    def to_json(self) -> dict[str, Any]:
        relation = None if self.relation is None else asdict(self.relation) | {"place": str(self.relation.place)}
        named = None if self.fault_class is None else str(self.fault_class)
        return {"kind": str(self.kind), "shown": str(self.shown), "relation": relation, "fault_class": named}

    @classmethod
    def from_json(cls, told: Any) -> Symptom:
        """ValueError, KeyError or TypeError where it is none."""
        relation = told["relation"]
        where = None if relation is None else Relation(Place(relation["place"]), int(relation["distance"]))
        named = told["fault_class"]
        fault_class = None if named is None else FaultClass(named)
        return cls(VerdictKind(told["kind"]), Shown(told["shown"]), where, fault_class)
