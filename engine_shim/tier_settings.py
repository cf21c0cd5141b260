"""The section `[engine.tiers]` of checkengine.toml."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from checkengine.guards.settings import Section


class TierSettings(Section):
    """Tiers behind the engine's own memory; both are off until they are given bytes."""

    host_bytes: int = Field(0, ge=0)
    """Host memory for blocks that the engine's memory has no room for."""
    disk_bytes: int = Field(0, ge=0)
    """Disk for blocks that host memory has no room for."""
    directory: Path = Path("checkengine-kv")
    """Of the disk tier and of captures. Several engines of one model may share it; blocks are encrypted with the key of
    this deployment, since KV bytes are content."""
    keep_hours: float = Field(24.0, gt=0)
    """Blocks on disk that nobody has asked for since then are deleted."""
    prefetch_bytes: int = Field(64 * 2**20, ge=0)
    """Blocks that one hint may bring from disk to host memory."""
    pipelined: bool = False
    """Seal a block on another thread while the next one is copied: for machines with a core that nothing else needs."""
    captures: bool = True
    """Keep both sides' records of a block that broke its seal, as keyed hashes, in `transfers` of `directory`:
    `checkengine replay FILE` tells which side broke it."""
