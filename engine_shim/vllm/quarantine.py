"""KV blocks of stopped sequences: out of the prefix cache at once, and refilled before anything reads them again.

They are not held back: vLLM may hand them on in the next step, which then begins with overwriting them. So it costs no
memory, and a limit of quarantined blocks (`[brake] maximum_quarantined_fraction`) has nothing to limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

NULL_BLOCK = 0
"""vLLM's padding; no sequence owns it."""


class Quarantine:
    """Numbers of blocks that wait for their refill."""

    def __init__(self) -> None:
        self._waiting: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, blocks: Iterable[int]) -> None:
        self._waiting.update(block for block in blocks if block != NULL_BLOCK)

    def handed_on(self, scheduler_output: Any) -> tuple[int, ...]:
        """Blocks of the quarantine that this message gives to a sequence; they leave the quarantine with it."""
        if not self._waiting:
            return ()
        again = tuple(sorted(self._waiting.intersection(given_blocks(scheduler_output))))
        self._waiting.difference_update(again)
        return again


def given_blocks(scheduler_output: Any) -> Iterator[int]:
    """Numbers of blocks that a message gives to sequences: new ones and prefix hits alike."""
    for new in scheduler_output.scheduled_new_reqs:
        yield from flat(new.block_ids)
    for groups in scheduler_output.scheduled_cached_reqs.new_block_ids:
        if groups is not None:
            yield from flat(groups)


def flat(groups: Iterable[Iterable[int]]) -> Iterator[int]:
    """Block numbers of all KV cache groups; models with several kinds of attention have a few of these."""
    for group in groups:
        yield from group
