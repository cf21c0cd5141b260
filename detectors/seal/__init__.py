"""Seals of KV blocks: what a block held when it left memory, and what broke on the way."""

from checkengine.detectors.seal.cells import Cells, copy_tensor, hash_tensor
from checkengine.detectors.seal.diagnosis import Break, Broken, Expected, diagnose
from checkengine.detectors.seal.flips import Flip, find_flip
from checkengine.detectors.seal.seal import Seal, SealError

__all__ = [
    "Break",
    "Broken",
    "Cells",
    "Expected",
    "Flip",
    "Seal",
    "SealError",
    "copy_tensor",
    "diagnose",
    "find_flip",
    "hash_tensor",
]
