"""Eight products that reuse one weight, beside eight that each have their own copy of it.

Both do the same arithmetic on the same shapes; only where the weight is read from differs. Where eight copies fit no
cache but one does, sharing saves memory traffic; where not even one fits, each use reads it from memory again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from checkengine.probing.counters import MissCounter
from checkengine.probing.timing import Pairs, Share, Work

USES = 8
COLUMNS = 4
"""Tokens in the batch: few, as in decoding, so that reading the weight is what takes the time."""
PAYS = 1.05
"""Sharing pays where it is five per cent faster, and more than chance."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Of one weight's size."""

    bytes: int
    shared_seconds: float
    copies_seconds: float
    ratio: float
    """Copies' time over the shared weight's: above 1 sharing is faster."""
    low: float
    high: float
    """95 % interval of the ratio."""
    shared_traffic: int | None = None
    copies_traffic: int | None = None
    """Bytes counted from behind the last cache level; None where the processor's counters cannot be read."""

    @property
    def shared_bandwidth(self) -> float:
        """Bytes a second at which weights were used, wherever they came from."""
        return USES * self.bytes / self.shared_seconds

    @property
    def copies_bandwidth(self) -> float:
        return USES * self.bytes / self.copies_seconds

    @property
    def pays(self) -> bool:
        return self.ratio >= PAYS and self.low > 1


def sizes_around(cache: int, memory: int) -> list[int]:
    """Weight sizes in bytes from a thousandth of the cache to four times it, as eight copies fit into `memory`."""
    sizes = [cache * 2**step // 1024 for step in range(13)]
    return [size for size in sizes if size >= 2**18 and (USES + 1) * size <= memory]


def measure(
    sizes: Sequence[int], device: torch.device, dtype: torch.dtype, time: Share, counter: MissCounter | None
) -> Iterator[Sharing]:
    """One size after another, until the time is over."""
    for size in sizes:
        if not time.left:
            return
        ends = perf_counter() + time.take()
        side = max(8, int((size / dtype.itemsize) ** 0.5))
        weights = [random_rows((side, side), device, dtype, seed) for seed in range(USES)]
        pairs = Pairs(chain(weights[:1] * USES), chain(weights), device, least=5, ends=ends)
        ratio, low, high = pairs.ratio()
        traffic = (None, None) if counter is None else _traffic(weights, counter)
        yield Sharing(side * side * dtype.itemsize, *pairs.medians, ratio, low, high, *traffic)


def random_rows(
    shape: Sequence[int], device: torch.device, dtype: torch.dtype, seed: int = 0, *, distinct: int = 64
) -> torch.Tensor:
    """A weight of shape (rows, columns), scaled so that a chain of products neither overflows nor dies.

    A few rows are drawn and repeated, since drawing gigabytes takes longer than measuring; a constant would flatter a
    GPU, whose clock follows what its wires carry.
    """
    rows, columns = shape
    generator = torch.Generator(device).manual_seed(seed)
    drawn = torch.empty(min(rows, distinct), columns, device=device, dtype=torch.float32)
    drawn.normal_(0, columns**-0.5, generator=generator)
    return drawn.to(dtype).repeat(-(-rows // len(drawn)), 1)[:rows].contiguous()


def chain(weights: Sequence[torch.Tensor]) -> Work:
    start = torch.ones(weights[0].shape[1], COLUMNS, device=weights[0].device, dtype=weights[0].dtype)

    def work() -> torch.Tensor:
        state = start
        for weight in weights:
            state = weight @ state
        return state

    return work


def _traffic(weights: Sequence[torch.Tensor], counter: MissCounter) -> tuple[int, int]:
    return counter.bytes_during(chain(list(weights[:1]) * USES)), counter.bytes_during(chain(weights))


def stops_paying(found: Sequence[Sharing]) -> int | None:
    """The smallest measured size from which on sharing never pays; None where it pays at the largest measured."""
    ordered = sorted(found, key=lambda each: each.bytes)
    while ordered and not ordered[-1].pays:
        last = ordered.pop()
        if not ordered or ordered[-1].pays:
            return last.bytes
    return None
