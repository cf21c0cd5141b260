"""Blocks in host memory, the least recently used given up first. On a GPU machine its arrays would be pinned."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from checkengine.engine_shim.tiers.payload import Payload


class HostTier:
    """Safe from several threads: the engine's and the prefetcher's."""

    def __init__(self, budget: int, give_up: Callable[[bytes, Payload], None] = lambda identity, payload: None) -> None:
        """`give_up` is told each block that has to go, outside of the lock."""
        self.budget = budget
        self.used = 0
        self.give_up = give_up
        self.pinned: frozenset[bytes] = frozenset()
        """About to be read: they give way to nothing."""
        self._blocks: OrderedDict[bytes, Payload] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, identity: bytes) -> bool:
        return identity in self._blocks

    def get(self, identity: bytes) -> Payload | None:
        with self._lock:
            payload = self._blocks.get(identity)
            if payload is not None:
                self._blocks.move_to_end(identity)
            return payload

    def put(self, identity: bytes, payload: Payload) -> bool:
        """False where a block alone is larger than what is not pinned; it then counts as given up."""
        given_up: list[tuple[bytes, Payload]] = []
        with self._lock:
            self._drop(identity)
            held = sum(self._blocks[each].size for each in self.pinned if each in self._blocks)
            fits = payload.size <= self.budget - held
            while fits and self.used + payload.size > self.budget:
                oldest = next(each for each in self._blocks if each not in self.pinned)
                given_up.append((oldest, self._blocks[oldest]))
                self._drop(oldest)
            if fits:
                self._blocks[identity] = payload
                self.used += payload.size
        for each in given_up if fits else [(identity, payload)]:
            self.give_up(*each)
        return fits

    def items(self) -> list[tuple[bytes, Payload]]:
        with self._lock:
            return list(self._blocks.items())

    def forget(self, identity: bytes) -> None:
        with self._lock:
            self._drop(identity)

    def _drop(self, identity: bytes) -> None:
        gone = self._blocks.pop(identity, None)
        if gone is not None:
            self.used -= gone.size
