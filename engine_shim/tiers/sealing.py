"""A block copied and sealed: in one pass, or copied here and sealed on another thread while the next one is copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from checkengine.detectors.seal import Cells, Seal, copy_tensor
from checkengine.engine_shim.tiers.payload import Bits, Payload, cells_of


class Sealing:
    """`pipelined`: hashing runs without the interpreter's lock, so that a free core takes it over whole. The seal is
    then of the copy: what the copying itself breaks is sealed with it."""

    def __init__(self, pipelined: bool = False) -> None:
        self._thread = ThreadPoolExecutor(1, "checkengine-kv-seal") if pipelined else None

    def copied(self, bits: Mapping[str, Bits], seal_of: Callable[[Cells], Seal]) -> Payload:
        """`seal_of` makes a seal of the cells; it runs on the sealing thread where there is one."""
        copies = {name: np.empty_like(tensor) for name, tensor in bits.items()}
        if self._thread is None:
            return Payload(copies, seal_of({name: copy_tensor(tensor, copies[name]) for name, tensor in bits.items()}))
        for name, tensor in bits.items():
            np.copyto(copies[name], tensor)
        return Payload(copies, self._thread.submit(lambda: seal_of(cells_of(copies))))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
