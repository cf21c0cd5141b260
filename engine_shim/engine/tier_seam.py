"""Between an engine and its lower tiers: what a move means for replays and guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from checkengine.detectors.seal import Broken
from checkengine.engine_shim.engine.environment import config_digest, weights_digest
from checkengine.engine_shim.engine.prefix_cache import block_ids
from checkengine.engine_shim.tiers import DiskTier, HostTier, TieredBlocks
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle.privacy import deployment_key

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.engine import Engine

KIND = "kv.integrity"


class TierSeam:
    """The scheduler's `LowerTiers`."""

    def __init__(self, engine: Engine, blocks: TieredBlocks) -> None:
        self.blocks = blocks
        self.tell: Callable[[Finding], object] = lambda finding: None
        """Hears of a block that was refused, on the engine's thread."""
        self._engine = engine
        blocks.refuse = self._refused

    def __contains__(self, identity: bytes) -> bool:
        return identity in self.blocks

    def keep(self, identity: bytes, block: int, generation: int) -> None:
        self.blocks.keep(identity, block, generation)

    def restore(self, identity: bytes, block: int) -> bool:
        if self._engine.undo is not None:
            # What comes back is read from this step on and is nobody's record: replays begin here.
            self._engine.undo.clear(self._engine.steps)
        return self.blocks.restore(identity, block)

    def forget(self, identity: bytes) -> None:
        self.blocks.forget(identity)

    def prefetch(self, tokens: Sequence[int]) -> bool:
        """A conversation may be opened again soon: bring its blocks nearer. From any thread; never waits."""
        return self.blocks.prefetch(block_ids(tokens[:-1], self._engine.settings.block_size))

    def close(self) -> None:
        self.blocks.flush()
        self.blocks.close()

    def _refused(self, broken: Broken, block: int) -> None:
        evidence: dict[str, float | int | bool] = {
            "cells": broken.cells,
            "layer": broken.layer,
            "position": broken.token,
            "head": broken.head,
            "block": block,
        }
        evidence[str(broken.kind).replace("'", "").replace(" ", "_")] = True
        if broken.flip is not None:
            evidence |= {"byte": broken.flip.byte, "bit": broken.flip.bit}
        name = self._engine.sequence_of(block)
        self.tell(Finding(KIND, name, Severity.WARNING, self._engine.steps, 0, "seal", evidence=evidence))


def tiers_of(engine: Engine) -> TierSeam | None:
    """As the settings say; None where no tier has any bytes."""
    chosen = engine.settings.tiers
    if not engine.settings.prefix_cache or not (chosen.host_bytes or chosen.disk_bytes):
        return None
    key, disk = deployment_key(), None
    if chosen.disk_bytes:
        model = (config_digest(engine.model), weights_digest(engine.model))
        form = (engine.memory.layout, engine.memory.block_size)
        disk = DiskTier(chosen.directory, chosen.disk_bytes, key, repr((model, form)), chosen.keep_hours)
    blocks = TieredBlocks(
        engine.memory.tensors,
        HostTier(chosen.host_bytes),
        disk,
        owner=key.digest("kv owner", ""),
        writer="embedded",
        prefetch_bytes=chosen.prefetch_bytes,
    )
    return TierSeam(engine, blocks)
