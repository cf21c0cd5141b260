"""Whether sharing weights among loops saves memory traffic on this device, and up to which size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from checkengine import __version__
from checkengine.figures import machine
from checkengine.guards.errors import UserError
from checkengine.probing import loop_block, products
from checkengine.probing.caches import last_cache_bytes
from checkengine.probing.counters import miss_counter
from checkengine.probing.loop_block import Looped
from checkengine.probing.products import Sharing
from checkengine.probing.timing import Share

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BLOCK_SHARES = (1 / 8, 1 / 2, 2)
"""Of the last cache level: blocks that lie well inside, just inside, and outside."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    device: str = "cpu"
    dtype: str = "float32"
    seconds: float = 60.0
    """For all of the products' and blocks' measuring, about."""
    memory: int = 4 * 2**30
    """Bytes that eight copies of the largest weight may take."""
    cache: int | None = None
    on_chip: int = 250 * 10**6
    """Memory that a loop block is asked to fit: an LPU's 230 to 250 MB, say."""
    eager_only: bool = False
    """Compiling a block takes up to a minute a size."""


@dataclass(frozen=True, slots=True)
class Residency:
    options: ProbeOptions
    cache: int
    sharing: tuple[Sharing, ...]
    looped: tuple[Looped, ...]
    kernels: tuple[tuple[str, float, int], ...]
    threads: int

    @property
    def stops_paying(self) -> int | None:
        return products.stops_paying(self.sharing)

    def as_json(self) -> dict[str, Any]:
        """{"command", "version", "machine", "device", "sharing": […], "looped": […], …}; a probe has no targets."""
        return {
            "command": "probe residency",
            "version": __version__,
            "machine": machine(),
            "device": self.options.device,
            "dtype": self.options.dtype,
            "last_cache_bytes": self.cache,
            "stops_paying_bytes": self.stops_paying,
            "sharing": [asdict(each) for each in self.sharing],
            "looped": [asdict(each) | {"fits_on_chip": self.fits(each.bytes)} for each in self.looped],
            "on_chip_bytes": self.options.on_chip,
            "kernels": [{"name": name, "seconds": spent, "calls": calls} for name, spent, calls in self.kernels],
        }

    def fits(self, size: int) -> bool:
        return size <= self.options.on_chip


def probe(options: ProbeOptions, tell: Callable[[str], None] = lambda line: None) -> Residency:
    """Takes about `options.seconds`. UserError where the device is not there."""
    device = _device(options.device)
    dtype = DTYPES[options.dtype]
    cache = options.cache or last_cache_bytes(device)
    sizes = products.sizes_around(cache, options.memory)
    blocks = [size for share in _BLOCK_SHARES if 2 * (size := int(cache * share)) <= options.memory]
    variants = ("eager",) if options.eager_only else _variants(device)
    compiled = min(2, len(blocks)) * (len(variants) - 1)
    time = Share(options.seconds, len(sizes) + len(blocks) + compiled)
    threads = torch.get_num_threads()
    if device.type == "cpu":
        # A second thread has a second cache of its own, and shared cores make it wait: one thread, one answer.
        torch.set_num_threads(1)
    try:
        tell(f"{len(sizes)} sizes of products, {len(blocks)} of a loop block …")
        with torch.inference_mode():
            shared = tuple(products.measure(sizes, device, dtype, time, miss_counter()))
        if len(shared) < len(sizes):
            tell(f"{len(sizes) - len(shared)} sizes were left out: the time was over; give more --seconds")
        looped = tuple(loop_block.measure(blocks, device, dtype, time, variants))
        kernels = tuple(loop_block.kernel_times(blocks[0], device, dtype)) if blocks else ()
        return Residency(options, cache, shared, looped, kernels, torch.get_num_threads())
    finally:
        torch.set_num_threads(threads)


def _variants(device: torch.device) -> tuple[str, ...]:
    return ("eager", "compiled", "graph") if device.type == "cuda" else ("eager", "compiled")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"there is no device {name!r} here: {str(error).splitlines()[0]}") from None
    return device
