"""Which block is whose: free list, reference counts, generations, quarantine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class BlockState(StrEnum):
    FREE = "free"
    OWNED = "owned"
    CACHED = "cached"
    """Nobody reads it; the prefix cache keeps it until the memory is needed."""
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Ownership:
    """`generation` counts how often the block was handed out; `handles` are the sequences that hold it now."""

    state: BlockState
    generation: int
    handles: tuple[int, ...] = ()


class OutOfBlocks(Exception):
    """No free block is left."""


class BlockPool:
    """Hands out blocks 0 … blocks - 1. Every block is in exactly one state at every moment."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free: deque[int] = deque(range(blocks))
        self._generation = [0] * blocks
        self._holders: list[set[int]] = [set() for _ in range(blocks)]
        self._state = [BlockState.FREE] * blocks
        self._condemned: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def quarantined(self) -> tuple[int, ...]:
        return tuple(block for block in range(self.blocks) if self._state[block] is BlockState.QUARANTINED)

    def owner(self, block: int) -> Ownership:
        return Ownership(self._state[block], self._generation[block], tuple(sorted(self._holders[block])))

    def holders(self, block: int) -> int:
        return len(self._holders[block])

    def take(self, handle: int) -> int:
        """A free block for a sequence, the one that has been free longest; a new generation begins."""
        if not self._free:
            raise OutOfBlocks
        block = self._free.popleft()
        self._generation[block] += 1
        self._holders[block].add(handle)
        self._state[block] = BlockState.OWNED
        return block

    def share(self, block: int, handle: int) -> None:
        """A further sequence reads the block, or the first one since it was only cached."""
        self._holders[block].add(handle)
        self._state[block] = BlockState.OWNED

    def release(self, block: int, handle: int, *, cached: bool = False) -> None:
        """The sequence lets go. The last one's block goes to quarantine if condemned, else to the cache or free."""
        self._holders[block].remove(handle)
        if self._holders[block]:
            return
        if block in self._condemned:
            self._condemned.remove(block)
            self._state[block] = BlockState.QUARANTINED
        elif cached:
            self._state[block] = BlockState.CACHED
        else:
            self._to_free(block)

    def evict(self, block: int) -> None:
        """A cached block becomes free."""
        self._to_free(block)

    def condemn(self, blocks: Iterable[int]) -> None:
        """To quarantine: held blocks when their last holder lets go, all others at once."""
        for block in blocks:
            if self._holders[block]:
                self._condemned.add(block)
            else:
                if self._state[block] is BlockState.FREE:
                    self._free.remove(block)
                self._state[block] = BlockState.QUARANTINED

    def pardon(self, blocks: Iterable[int]) -> None:
        """Quarantined blocks become free; their memory must have been refilled before."""
        for block in blocks:
            if self._state[block] is BlockState.QUARANTINED:
                self._to_free(block)

    def _to_free(self, block: int) -> None:
        self._state[block] = BlockState.FREE
        self._free.append(block)
