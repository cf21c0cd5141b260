"""Where KV blocks go that the engine's memory has no room for: host memory, then disk; each sealed on its way."""

from checkengine.engine_shim.tier_settings import TierSettings
from checkengine.engine_shim.tiers.disk import DiskTier
from checkengine.engine_shim.tiers.host import HostTier
from checkengine.engine_shim.tiers.moves import FaultyMove, Move
from checkengine.engine_shim.tiers.payload import Payload
from checkengine.engine_shim.tiers.tiered import TierCounts, TieredBlocks

__all__ = [
    "DiskTier",
    "FaultyMove",
    "HostTier",
    "Move",
    "Payload",
    "TierCounts",
    "TierSettings",
    "TieredBlocks",
]
