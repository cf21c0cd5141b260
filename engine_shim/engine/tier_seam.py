"""Between an engine and its lower tiers: what a move means for replays and guards."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from checkengine.engine_shim.engine.environment import config_digest, weights_digest
from checkengine.engine_shim.engine.prefix_cache import block_ids
from checkengine.engine_shim.tiers import DiskTier, HostTier, TieredBlocks
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle.privacy import deployment_key
from checkengine.replay.transfer import KIND, Transfer, evidence_of, judge_transfer
from checkengine.replay.transfer_file import write_transfer

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.engine import Engine

CAPTURES = "transfers"
"""Folder within that of the tiers."""

logger = logging.getLogger("checkengine.tiers")


class TierSeam:
    """The scheduler's `LowerTiers`."""

    def __init__(self, engine: Engine, blocks: TieredBlocks) -> None:
        self.blocks = blocks
        self.tell: Callable[[Finding], object] = lambda finding: None
        """Hears of a block that was refused, on the engine's thread."""
        chosen = engine.settings.tiers
        self.captures = chosen.directory / CAPTURES if chosen.captures else None
        """Where both sides' records of a broken transfer are kept; None keeps none."""
        self._key = deployment_key()
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

    def pin(self, identities: Sequence[bytes]) -> None:
        self.blocks.pin(identities)

    def prefetch(self, tokens: Sequence[int]) -> bool:
        """A conversation may be opened again soon: bring its blocks nearer. From any thread; never waits."""
        return self.prefetch_blocks(self.names(tokens))

    @property
    def prefetches(self) -> bool:
        return self.blocks.has_disk

    def names(self, tokens: Sequence[int]) -> list[bytes]:
        """At least one token is left to compute."""
        return block_ids(tokens[:-1], self._engine.settings.block_size)

    def prefetch_blocks(self, names: Sequence[bytes]) -> bool:
        return self.blocks.prefetch(names)

    def close(self) -> None:
        self.blocks.flush()
        self.blocks.close()

    def _refused(self, transfer: Transfer, block: int) -> None:
        evidence = evidence_of(transfer.broken, block, judge_transfer(transfer).side)
        name = self._engine.sequence_of(block)
        self.tell(Finding(KIND, name, Severity.WARNING, self._engine.steps, 0, "seal", evidence=evidence))
        self._capture(transfer)

    def _capture(self, transfer: Transfer) -> None:
        if self.captures is None:
            return
        name = f"{time.time_ns()}-{secrets.token_hex(4)}"
        try:
            logger.info(
                "both sides' records of a broken KV block are in %s",
                write_transfer(transfer, self.captures, self._key, name),
            )
        except OSError as error:
            logger.warning("a KV block broke its seal, and its records could not be written: %s", error)


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
        writer=f"embedded:{os.getpid()}:{secrets.token_hex(4)}",
        prefetch_bytes=chosen.prefetch_bytes,
        pipelined=chosen.pipelined,
    )
    return TierSeam(engine, blocks)
