"""Where a fault is: layers, heads, tokens, logical positions and physical slots."""

from checkengine.replay.localise.calls import CallSearch
from checkengine.replay.localise.whole import Localised, find_all, localise, place_of
from checkengine.replay.localise.write import localise_write

__all__ = ["CallSearch", "Localised", "find_all", "localise", "localise_write", "place_of"]
