"""A block copied and sealed: in one pass, or copied here and sealed on another thread while the next one is copied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue

import numpy as np

from checkengine.detectors.seal import Cells, Seal, copy_tensor
from checkengine.engine_shim.tiers.payload import Bits, Payload, SealedLater, cells_of


class Sealing:
    """`pipelined`: hashing runs without the interpreter's lock, so that a free core takes it over whole. The seal is
    then of the copy: what the copying itself breaks is sealed with it.

    The queue is not bounded in itself: what waits in it are references to blocks that a tier holds, or gave up, which
    waits for their seals.
    """

    def __init__(self, pipelined: bool = False) -> None:
        self._queue: SimpleQueue[SealedLater | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="checkengine-kv-seal", daemon=True)
        self.pipelined = pipelined
        if pipelined:
            self._thread.start()

    def copied(self, bits: Mapping[str, Bits], seal_of: Callable[[Cells], Seal]) -> Payload:
        """`seal_of` makes a seal of the cells; it runs on the sealing thread where there is one."""
        copies = {name: np.empty_like(tensor) for name, tensor in bits.items()}
        if not self.pipelined:
            return Payload(copies, seal_of({name: copy_tensor(tensor, copies[name]) for name, tensor in bits.items()}))
        for name, tensor in bits.items():
            np.copyto(copies[name], tensor)
        later = SealedLater(lambda: seal_of(cells_of(copies)))
        self._queue.put(later)
        return Payload(copies, later)

    def close(self) -> None:
        """What waits is sealed first."""
        if self.pipelined:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (later := self._queue.get()) is not None:
            later.make()
